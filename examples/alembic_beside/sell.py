"""Tickets and conversations in one database, each with its own migrations.

    cd examples/alembic_beside
    alembic upgrade head
    locus-store db upgrade --url sqlite:///shop.db
    python sell.py order-7 Porto

The ticket and the state of the conversation are committed in one transaction, or not at all.
``SHOP_URL`` names the database.
"""

import asyncio
import os
import sys

from models import Ticket
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from locus_store import open_checkpointer

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


async def main(thread_id: str, destination: str) -> None:
    """Sell one ticket."""
    scheme, _, rest = URL.partition("://")
    engine = create_async_engine(f"{DRIVERS[scheme]}://{rest}")
    async with open_checkpointer(URL, state_type=dict, auto_migrate=False) as checkpointer:
        state = await checkpointer.load(thread_id) or {"sold": []}
        async with AsyncSession(engine) as session, session.begin():
            ticket = Ticket(thread_id=thread_id, destination=destination)
            session.add(ticket)
            await session.flush()
            state["sold"].append(ticket.id)
            connection = await session.connection()
            await checkpointer.save(state, thread_id, connection=connection)
    print(f"sold {state['sold']}")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
