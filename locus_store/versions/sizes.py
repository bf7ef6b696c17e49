"""The stored sizes of versions."""

from __future__ import annotations

from abc import ABC, abstractmethod


class MeasuresVersions(ABC):
    """A backend that knows the stored sizes of versions without reading their payloads."""

    @abstractmethod
    async def sizes(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        """Return the stored bytes of the versions from sequence ``first`` to ``last``.

        Returns:
            Length of each version's payload, by its sequence, hidden versions among them.
        """
