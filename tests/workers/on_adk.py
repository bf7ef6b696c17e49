"""A process that runs one turn of a session of Google ADK: ``on_adk.py URL TEXT``.

Prints how many contents the model was given.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from locus_store.adapters.adk import LocusSessionService


class Booking(BaseLlm):
    model: str = "booking"

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        print(f"{len(llm_request.contents)} contents", end="|")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Booked.")]))


async def main(url: str, text: str) -> None:
    async with LocusSessionService.from_url(url) as service:
        agent = LlmAgent(name="clerk", model=Booking())
        runner = Runner(app_name="app", agent=agent, session_service=service)
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
