"""What a transfer did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

Progress = Callable[[str, bool], None]
"""Called after each thread with its id, and whether it was written (else it was there)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Threads that were written, and that were there already with the same versions."""

    written: int = 0
    same: int = 0

    def and_one(self, *, is_new: bool) -> Counts:
        """With one more thread."""
        if is_new:
            return replace(self, written=self.written + 1)
        return replace(self, same=self.same + 1)
