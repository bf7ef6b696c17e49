"""A conversation of the OpenAI Agents SDK that every process can continue.

    pip install ".[openai-agents]"
    python examples/openai_agents_session.py user-42 "Hello"
    python examples/openai_agents_session.py user-42 "And again"

The model is scripted, so that the example needs no key: replace ``Scripted()`` by the name of a
model. ``LOCUS_STORE_URL`` names the database.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from agents import Agent, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from locus_store.adapters.openai_agents import LocusSession

URL = os.environ.get("LOCUS_STORE_URL", "sqlite:///chats.db")


class Scripted(Model):
    """A model that counts the items it is given."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002  (the SDK's name)
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        """Answer with the number of items."""
        text = ResponseOutputText(text=f"{len(input)} items", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        """Refuse: the example does not stream."""
        raise NotImplementedError


async def main(session_id: str, text: str) -> None:
    """Hold one turn."""
    set_tracing_disabled(True)
    session = LocusSession.from_url(session_id, URL)
    result = await Runner.run(Agent("counter", model=Scripted()), text, session=session)
    print(result.final_output)
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
