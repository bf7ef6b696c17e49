"""Agent state in Oracle Database 26ai: save, load, list, vacuum, search.

Needs a database, for example an Autonomous Database with its wallet on disk::

    export ORACLE_DSN=mydb_low              # an alias of tnsnames.ora, or host:1521/service
    export ORACLE_USER=locus_app
    export ORACLE_PASSWORD=...
    export ORACLE_WALLET=~/wallets/mydb     # omit it if no wallet is needed
    export ORACLE_WALLET_PASSWORD=...       # of an encrypted wallet
    python examples/oracle_notebook.py

Without these variables the script prints the missing ones and exits with code 0. Not yet run
against a live database.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from locus_store import AgentState, LocusStoreError, Message, oracle_checkpointer

NEEDED = ("ORACLE_DSN", "ORACLE_USER", "ORACLE_PASSWORD")


def place() -> dict[str, Any]:
    """Return the options of the connection."""
    return {
        "dsn": os.environ["ORACLE_DSN"],
        "user": os.environ["ORACLE_USER"],
        "password": os.environ["ORACLE_PASSWORD"],
        "wallet_location": os.environ.get("ORACLE_WALLET") or None,
        "wallet_password": os.environ.get("ORACLE_WALLET_PASSWORD"),
        "table_name": "locus_notebook",
    }


async def main() -> None:
    """Run all parts."""
    missing = [it for it in NEEDED if not os.environ.get(it)]
    if missing:
        print(f"Nothing was done: set {', '.join(missing)} (and ORACLE_WALLET for a wallet).")
        return
    async with oracle_checkpointer(**place()) as checkpointer:
        print("1. Save and load")
        state = AgentState(agent_id="demo")
        state = state.with_message(Message.user("Is Porto warm in May?"))
        state = state.with_message(Message.assistant("Mostly: 19 degrees, some rain."))
        saved = await checkpointer.save(state, "trip")
        loaded = await checkpointer.load("trip")
        print(f"   version {saved}: {len(loaded.messages)} messages")

        print("2. Capabilities")
        can = checkpointer.capabilities
        for name in ("list_threads", "search", "metadata_query", "vacuum", "branching", "ttl"):
            print(f"   {name}: {getattr(can, name)}")

        print("3. Threads and their versions")
        other = AgentState(agent_id="demo").with_message(Message.user("A second thread"))
        await checkpointer.save(other, "second")
        for thread_id in await checkpointer.list_threads():
            versions = await checkpointer.list_checkpoints(thread_id)
            print(f"   {thread_id}: {len(versions)}")

        print("4. Vacuum")
        print(f"   {await checkpointer.vacuum(older_than_days=30)} old versions removed")

        print("5. Search")
        found = [it["thread_id"] for it in await checkpointer.search("Porto")]
        print(f"   'Porto' is in {found}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except LocusStoreError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
