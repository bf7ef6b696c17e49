"""The stored sizes and the numbers of versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MeasuresVersions(ABC):
    """A backend that knows sizes and numbers of versions without reading their payloads."""

    @abstractmethod
    async def sizes(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        """Return the stored bytes of the versions from sequence ``first`` to ``last``.

        Returns:
            Length of each version's payload, by its sequence, hidden versions among them.
        """

    @abstractmethod
    async def counts(self, thread_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of versions of threads, in all namespaces, in one statement.

        Returns:
            The number by the thread's id, for threads that have versions.
        """
