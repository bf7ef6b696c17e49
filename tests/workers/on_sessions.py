"""A process of 16 tasks that append to sessions: ``on_sessions.py KIND URL WRITER``.

Reads a JSON list of numbers. Number ``n`` is appended by task ``n % 16`` to session ``n % 8`` of
the framework ``KIND``. Numbers of the list that are stored already are not appended again, if the
framework has no ids for them. Each stored number is printed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from locus_store import blocking, open_message_log

TASKS, SESSIONS = 16, 8
NAMES = [f"s{n}" for n in range(SESSIONS)]


class Sessions:
    """Sessions of a framework over a message log."""

    namespace = ""

    def __init__(self, log: Any, url: str, writer: str) -> None:
        self.log, self.url, self.writer = log, url, writer
        self.open()

    def open(self) -> None:
        """Open what is kept for all appends."""

    async def append(self, name: str, n: int) -> bool:
        """Append a number; ``False``: another writer was faster."""
        raise NotImplementedError

    def thread(self, name: str) -> str:
        """Return the thread of a session."""
        return name

    def said(self, content: Any) -> str:
        """Return the text ``WRITER NUMBER`` of a stored message."""
        del content
        return ""

    async def stored(self) -> set[int]:
        """Return this writer's numbers that are stored."""
        names = map(self.thread, NAMES)
        found = [await self.log.load(it, namespace=self.namespace) or () for it in names]
        said = [self.said(it.content).split() for messages in found for it in messages]
        return {int(it[1]) for it in said if it[:1] == [self.writer]}

    async def close(self) -> None:
        """Close what ``open`` opened."""


class OpenAI(Sessions):
    def open(self) -> None:
        from locus_store.adapters.openai_agents import LocusSession

        self.sessions = {it: LocusSession(it, self.log) for it in NAMES}

    async def append(self, name: str, n: int) -> bool:
        await self.sessions[name].add_items([{"role": self.writer, "content": str(n)}])
        return True


class Claude(Sessions):
    def open(self) -> None:
        from locus_store.adapters.claude_agent import LocusSessionStore

        self.store = LocusSessionStore(self.log)

    async def append(self, name: str, n: int) -> bool:
        entry = {"type": self.writer, "uuid": f"{self.writer}-{n}", "content": str(n)}
        key = {"project_key": "p", "session_id": name}
        await self.store.append(key, [{**entry, "lastPrompt": self.writer}])
        return True


class PydanticAI(Sessions):
    namespace = "messages"

    def open(self) -> None:
        from locus_store.adapters.pydantic_ai import LocusConversationStore

        self.store = LocusConversationStore(self.log)

    async def append(self, name: str, n: int) -> bool:
        from pydantic_ai.conversation import Conversation
        from pydantic_ai.conversation_store import ConversationConflict
        from pydantic_ai.messages import ModelRequest

        found = await self.store.load(name, limit=0) or Conversation(conversation_id=name)
        found.messages.append(ModelRequest.user_text_prompt(f"{self.writer} {n}"))
        try:
            await self.store.save(found)
        except ConversationConflict:
            return False
        return True

    def said(self, content: Any) -> str:
        return content["parts"][0]["content"]


class AgentFramework(Sessions):
    def open(self) -> None:
        from locus_store.adapters.agent_framework import LocusHistoryProvider

        self.provider = LocusHistoryProvider(self.log)

    async def append(self, name: str, n: int) -> bool:
        from agent_framework import Message

        text = f"{self.writer} {n}"
        await self.provider.save_messages(name, [Message(role="user", contents=[text])])
        return True

    def said(self, content: Any) -> str:
        return content["contents"][0]["text"]


class Strands(Sessions):
    namespace = "messages/a"

    def open(self) -> None:
        from locus_store.adapters.strands import LocusSessionRepository

        self.blocking = blocking.open_message_log(self.url)
        self.repository = LocusSessionRepository(self.blocking)

    async def append(self, name: str, n: int) -> bool:
        return await asyncio.to_thread(self._append, name, n)

    def _append(self, name: str, n: int) -> bool:
        from strands.types.session import SessionMessage

        from locus_store.adapters.strands import SessionConflictError

        newest = self.blocking.load(name, namespace=self.namespace, newest=1)
        index = int(newest[0].message_id) + 1 if newest else 0
        said = {"role": "user", "content": [{"text": f"{self.writer} {n}"}]}
        try:
            self.repository.create_message(name, "a", SessionMessage(said, index))
        except SessionConflictError:
            return False
        return True

    def said(self, content: Any) -> str:
        return content["message"]["content"][0]["text"]

    async def close(self) -> None:
        self.blocking.close()


class Adk(Sessions):
    def open(self) -> None:
        from locus_store.adapters.adk import LocusSessionService

        self.service, self.sessions = LocusSessionService(self.log), {}

    def thread(self, name: str) -> str:
        return f"app/u/{name}"

    async def append(self, name: str, n: int) -> bool:
        from google.adk.errors import StaleSessionError
        from google.adk.errors.already_exists_error import AlreadyExistsError
        from google.adk.events import Event, EventActions
        from google.adk.sessions.base_session_service import GetSessionConfig
        from google.genai import types

        names = {"app_name": "app", "user_id": "u", "session_id": name}
        text = f"{self.writer} {n}"
        event = Event(
            author="user",
            content=types.Content(role="user", parts=[types.Part(text=text)]),
            actions=EventActions(state_delta={"newest": text, f"app:{self.writer}": n}),
        )
        try:
            if name not in self.sessions:
                newest = GetSessionConfig(num_recent_events=1)  # a history takes 25 us an event
                found = await self.service.get_session(**names, config=newest)
                self.sessions[name] = found or await self.service.create_session(**names)
            await self.service.append_event(self.sessions[name], event)
        except (AlreadyExistsError, StaleSessionError):
            self.sessions.pop(name, None)
            return False
        return True

    def said(self, content: Any) -> str:
        return content["content"]["parts"][0]["text"]


KINDS = {
    "adk": Adk,
    "openai": OpenAI,
    "claude": Claude,
    "pydantic": PydanticAI,
    "agent-framework": AgentFramework,
    "strands": Strands,
}


async def write(kind: str, url: str, writer: str, numbers: list[int]) -> None:
    async with open_message_log(url) as log:
        sessions = KINDS[kind](log, url, writer)
        stored = await sessions.stored()

        async def task(mine: list[int]) -> None:
            for n in mine:
                is_stored = n in stored
                while not is_stored:
                    is_stored = await sessions.append(NAMES[n % SESSIONS], n)
                print(n, flush=True)

        lists = ([n for n in numbers if n % TASKS == it] for it in range(TASKS))
        await asyncio.gather(*map(task, lists))
        await sessions.close()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:4], json.load(sys.stdin)))
