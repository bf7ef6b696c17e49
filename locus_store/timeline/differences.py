"""The differences of two states for display: by key, list element and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from locus_store.values.encoding import pinned
from locus_store.values.frames.alignment import align, common_ends, fingerprint_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.timeline.layouts import Path

_LEVELS = 64
"""Deeper values are shown as changed as a whole."""

_CONTEXT = 20
"""Characters around the place at which two texts differ."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that was added, removed or changed."""

    what: Literal["added", "removed", "changed"]
    path: Path
    """Keys and list indices: in the newer state, but for what was removed."""

    before: Any = None
    after: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON, without ``before`` if added, or ``after`` if removed."""
        values = {"before": self.before, "after": self.after}
        values.pop({"added": "before", "removed": "after"}.get(self.what, ""), None)
        return {"what": self.what, "path": list(self.path), **values}


def differences(
    old: Any, new: Any, path: Path = (), *, step: Callable[[], None] | None = None
) -> Iterator[Difference]:
    """Yield the differences from ``old`` to ``new``, in the order of the newer state.

    Args:
        old: A value.
        new: Another one.
        path: Of both.
        step: Is called before each value inside; what it raises ends the comparison.
    """
    if step is not None:
        step()
    if pinned(old) == pinned(new):  # 1, 1.0 and True are equal in Python
        return
    if isinstance(old, dict) and isinstance(new, dict) and len(path) < _LEVELS:
        yield from _of_objects(old, new, path, step)
    elif isinstance(old, list) and isinstance(new, list) and len(path) < _LEVELS:
        yield from _of_lists(old, new, path, step)
    else:
        yield Difference("changed", path, old, new)


def _of_objects(
    old: dict[str, Any], new: dict[str, Any], path: Path, step: Callable[[], None] | None
) -> Iterator[Difference]:
    for key in sorted(old.keys() | new.keys()):
        if key not in new:
            yield Difference("removed", (*path, key), before=old[key])
        elif key not in old:
            yield Difference("added", (*path, key), after=new[key])
        else:
            yield from differences(old[key], new[key], (*path, key), step=step)


def _of_lists(
    old: list[Any], new: list[Any], path: Path, step: Callable[[], None] | None
) -> Iterator[Difference]:
    """Yield the differences of lists; equal elements are matched, runs of one length compared."""
    for start, stop, first, last in align(fingerprint_all(old)[0], fingerprint_all(new)[0]):
        if stop - start == last - first:
            for i, j in zip(range(start, stop), range(first, last), strict=True):
                yield from differences(old[i], new[j], (*path, j), step=step)
            continue
        for i in range(start, stop):
            yield Difference("removed", (*path, i), before=old[i])
        for j in range(first, last):
            yield Difference("added", (*path, j), after=new[j])


def changed_part(before: str, after: str) -> tuple[str, str]:
    """Return two strings without most of the start and end that they share."""
    head, tail = common_ends(before, after)
    head, tail = max(head - _CONTEXT, 0), max(tail - _CONTEXT, 0)
    marks = ("…" if head else "", "…" if tail else "")
    return tuple(  # type: ignore[return-value]  # two of them
        marks[0] + it[head : len(it) - tail] + marks[1] for it in (before, after)
    )
