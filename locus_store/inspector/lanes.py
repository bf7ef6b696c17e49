"""The lines between versions on the page of the timeline, a row for each version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH: Final = 14
"""Of a lane, in pixels."""

HEIGHT: Final = 28
"""Of a row; lines of neighbouring rows meet."""

MOST: Final = 12
"""Lanes that are drawn."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The lines of a row."""

    at: int
    """The middle of the version's dot."""

    path: str
    """In the syntax of SVG."""

    width: int


def drawn(versions: Iterable[tuple[str, str | None]]) -> list[Drawn]:
    """Return the lines of versions, newest first, by their ids and the ids of their parents."""
    lanes: list[str | None] = []
    return [_row(lanes, *it) for it in versions]


def _row(lanes: list[str | None], version_id: str, parent_id: str | None) -> Drawn:
    """Return the lines of a version; change the lanes to those below it.

    A lane holds the id of the version that it leads to.
    """
    came = [at for at, it in enumerate(lanes) if it == version_id]
    at = came[0] if came else _free(lanes)
    lines = [_line(it, 0, at, HEIGHT // 2) for it in came]
    lines += [
        _line(it, 0, it, HEIGHT) for it, target in enumerate(lanes) if target and it not in came
    ]
    for it in came:
        lanes[it] = None
    if parent_id is not None:
        lanes[at] = parent_id
        lines.append(_line(at, HEIGHT // 2, at, HEIGHT))
    while lanes and lanes[-1] is None:
        lanes.pop()
    width = WIDTH * min(max([len(lanes), at + 1, *(it + 1 for it in came)]), MOST)
    return Drawn(_middle(at), " ".join(dict.fromkeys(lines)), width)  # the last lane has many


def _free(lanes: list[str | None]) -> int:
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


def _middle(lane: int) -> int:
    return WIDTH * min(lane, MOST - 1) + WIDTH // 2


def _line(lane: int, top: int, to_lane: int, bottom: int) -> str:
    return f"M{_middle(lane)} {top}L{_middle(to_lane)} {bottom}"
