"""The stored sizes, the numbers of versions, and the marks of threads in lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INTERRUPT: Final = "__interrupt__"
"""LangGraph's channel of a task that waits for an answer."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """The marks of a thread."""

    is_interrupted: bool = False
    messages: int | None = None
    """Messages in all logs; ``None``: there is no log."""

    def __str__(self) -> str:
        noun = "message" if self.messages == 1 else "messages"
        logged = "" if self.messages is None else f"{self.messages:,} {noun}"
        return ", ".join(filter(None, ("interrupted" if self.is_interrupted else "", logged)))


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
        """Return the marks of threads in two statements.

        Returns:
            The marks by the thread's id, for threads that have some.
        """
