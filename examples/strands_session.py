"""An agent of Strands whose session every process can continue.

    pip install ".[strands]"
    python examples/strands_session.py order-7 "Two tickets to Porto."
    python examples/strands_session.py order-7 "Friday."

The model is scripted, so that the example needs no key. ``LOCUS_STORE_URL`` names the database.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.models import Model
from strands.session import RepositorySessionManager

from locus_store.adapters.strands import LocusSessionRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

URL = os.environ.get("LOCUS_STORE_URL", "sqlite:///chats.db")


class Scripted(Model):
    """A model that counts the messages it is given."""

    def update_config(self, **config: Any) -> None:
        """Change nothing."""

    def get_config(self) -> dict[str, Any]:
        """Return no configuration."""
        return {}

    def structured_output(self, *args: Any, **options: Any) -> Any:
        """Refuse: the example needs text only."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Answer with the number of messages."""
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"{len(messages)} messages"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def main(session_id: str, text: str) -> None:
    """Hold one turn."""
    repository = LocusSessionRepository.from_url(URL)
    manager = RepositorySessionManager(session_id, repository)
    agent = Agent(
        model=Scripted(), agent_id="clerk", session_manager=manager, callback_handler=None
    )
    print(str(agent(text)).strip())
    repository.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
