"""A process of 16 tasks that append to sessions: ``on_sessions.py KIND URL WRITER``.

Reads a JSON list of numbers. Number ``n`` is appended by task ``n % 16`` to session ``n % 8``: as
an item of the OpenAI Agents SDK, or as an entry of the Claude Agent SDK. Each acknowledged number
is printed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from locus_store import open_message_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TASKS, SESSIONS = 16, 8


def appending(kind: str, log: Any, writer: str) -> Callable[[int], Awaitable[None]]:
    if kind == "openai":
        from locus_store.adapters.openai_agents import LocusSession

        sessions = [LocusSession(f"s{n}", log) for n in range(SESSIONS)]
        return lambda n: sessions[n % SESSIONS].add_items([{"role": writer, "content": str(n)}])
    from locus_store.adapters.claude_agent import LocusSessionStore

    store = LocusSessionStore(log)
    return lambda n: store.append(
        {"project_key": "p", "session_id": f"s{n % SESSIONS}"},
        [{"type": writer, "uuid": f"{writer}-{n}", "content": str(n), "lastPrompt": writer}],
    )


async def write(kind: str, url: str, writer: str, numbers: list[int]) -> None:
    async with open_message_log(url) as log:
        append = appending(kind, log, writer)

        async def task(mine: list[int]) -> None:
            for n in mine:
                await append(n)
                print(n, flush=True)

        lists = ([n for n in numbers if n % TASKS == it] for it in range(TASKS))
        await asyncio.gather(*map(task, lists))


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:4], json.load(sys.stdin)))
