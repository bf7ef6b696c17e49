"""The stored sizes, the numbers of versions, and the marks of threads in lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

INTERRUPT: Final = "__interrupt__"
"""LangGraph's channel of a task that waits for an answer."""


RECORD_BYTES: Final = 8_000

SOURCES: Final = {"source", "step"}
"""Metadata that LangGraph gives each of its versions."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """The marks of a thread."""

    is_interrupted: bool = False
    messages: int | None = None
    """Messages in all logs; ``None``: there is no log."""

    metadata: Mapping[str, Any] | None = None
    """Of the head of the root namespace; ``None``: there is none."""

    user_id: str | None = None
    """The registered user."""

    expires_at: datetime | None = None
    record: bytes | None = None
    """The record of the newest save; ``None``: not known, or longer than ``RECORD_BYTES``."""

    has_turn: bool = False
    """A turn of the thread is held."""

    @property
    def kind(self) -> str:
        """Return what saves the thread: ``graph``, ``agent``, ``session`` or ``log``."""
        if self.metadata is not None:
            return "graph" if self.metadata.keys() >= SOURCES else "agent"
        return "session" if self.user_id is not None else "log"

    def __str__(self) -> str:
        noun = "message" if self.messages == 1 else "messages"
        logged = "" if self.messages is None else f"{self.messages:,} {noun}"
        marks = {"interrupted": self.is_interrupted, "turn held": self.has_turn, logged: logged}
        return ", ".join(name for name, is_so in marks.items() if is_so)


class MeasuresVersions(ABC):
    """A backend that knows sizes and numbers of versions without reading their payloads."""

    @abstractmethod
    async def measure_versions(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        """Return the stored bytes of the versions from sequence ``first`` to ``last``.

        Returns:
            Length of each version's payload, by its sequence, hidden versions among them.
        """

    @abstractmethod
    async def count_versions(self, thread_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of versions of threads, in all namespaces, in one statement.

        Returns:
            The number by the thread's id, for threads that have versions.
        """

    @abstractmethod
    async def find_statuses(self, thread_ids: Sequence[str]) -> dict[str, ThreadStatus]:
        """Return the marks of threads in three statements.

        Returns:
            The marks by the thread's id, for threads that have some.
        """
