"""Bisect: the version that changed the answer to a question.

Every version on the way is asked: an answer may change more than once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.timeline.lineage import lineage, visit

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.backend import StorageBackend
    from locus_store.timeline.conditions import Condition
    from locus_store.types import Version
    from locus_store.values.frames import Folder


@dataclass(frozen=True, slots=True)
class Turn:
    """A version with another answer than the one before it."""

    version: Version
    holds: bool
    """The answer from here on."""

    is_exact: bool
    """``False``: the answer changed in this version or before it, in one that could not be judged
    or is not stored any more."""


@dataclass(frozen=True, slots=True)
class Bisected:
    """The answers on the way to a version."""

    version: Version
    turns: list[Turn]
    """The oldest version that was judged, and each one that changed the answer, oldest first."""

    asked: int
    """Versions on the way, with the version itself."""

    skipped: int
    """Versions that could not be judged."""

    @property
    def first(self) -> Turn | None:
        """The first version for which the condition holds; ``None``: it never does."""
        return next((it for it in self.turns if it.holds), None)


class _Asking:
    """The answers along a lineage."""

    def __init__(self, condition: Condition, exact: list[bool]) -> None:
        self.turns: list[Turn] = []
        self.skipped = 0
        self._condition = condition
        self._exact = iter(exact)
        self._is_exact = True
        self._folder: Folder | None = None

    def visit(self, version: Version, folder: Folder) -> None:
        """Ask about the next version."""
        operations = folder.log if folder is self._folder else None
        answer = self._condition.answer(version, folder, operations)
        self._folder = folder
        if folder.log:
            folder.log.clear()
        self._is_exact &= next(self._exact)
        if answer is None:
            self.skipped += 1
            self._is_exact = False
            return
        if not self.turns or self.turns[-1].holds != answer:
            self.turns.append(Turn(version, answer, self._is_exact))
        self._is_exact = True


async def bisect(
    backend: StorageBackend,
    thread_id: str,
    condition: Condition,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    step: Callable[[], None] | None = None,
) -> Bisected | None:
    """Return the answers on the way to a version, or to the head; ``None`` if there is none.

    Args:
        backend: The storage.
        thread_id: The thread.
        condition: Of ``conditions``; used for this call only.
        checkpoint_id: The version, whose ancestors are asked about, and itself.
        namespace: The line of the version.
        step: Is called before each version, in a thread; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    way = await lineage(backend, thread_id, checkpoint_id, namespace=namespace)
    if way is None:
        return None
    asking = _Asking(condition, way.exact)
    await visit(backend, way.versions, asking, step)
    return Bisected(way.versions[-1], asking.turns, len(way.versions), asking.skipped)
