"""HTML for notebooks, without styles: strings are escaped and cut."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

Element = TypeVar("Element", bound="Mapping[str, Any] | Tabular")

ROWS: Final = 200
CHARACTERS: Final = 200
"""Of a cell."""


class Tabular:
    """An object that a notebook shows as a table of some attributes."""

    __slots__ = ()
    COLUMNS: ClassVar[tuple[str, ...]]

    def as_row(self) -> dict[str, Any]:
        """Return what is shown, by its names."""
        return {name: getattr(self, name) for name in self.COLUMNS}

    def _repr_html_(self) -> str:
        return make_table((), self.as_row().items())


class Table(list[Element]):
    """A list of mappings, or of ``Tabular`` objects, that a notebook shows as one table."""

    def _repr_html_(self) -> str:
        shown = (dict(it) if isinstance(it, Mapping) else it.as_row() for it in self)
        rows = list(islice(shown, ROWS + 1))
        return make_table(tuple(rows[0]) if rows else (), [tuple(it.values()) for it in rows])


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML; of more than ``ROWS`` rows the first ones.

    Args:
        columns: The names of the columns; without any, the first cell of a row is its name.
        rows: Their cells, of which ``None`` is empty.
    """
    left = iter(rows)
    shown = "".join(_make_row(it, has_name=not columns) for it in islice(left, ROWS))
    head = "".join(f"<th>{_make_cell(it)}</th>" for it in columns)
    more = "<p>Further rows are left out.</p>" if next(left, None) is not None else ""
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{shown}</table>{more}"


def _make_row(cells: Sequence[object], *, has_name: bool) -> str:
    tags = ["th" if has_name and not at else "td" for at in range(len(cells))]
    pairs = zip(tags, cells, strict=True)
    return f"<tr>{''.join(f'<{tag}>{_make_cell(it)}</{tag}>' for tag, it in pairs)}</tr>"


def _make_cell(value: object) -> str:
    """Return a value as text; control characters, and those that cannot be seen, are escapes."""
    if isinstance(value, datetime):
        value = f"{value:%Y-%m-%d %H:%M:%S %Z}"
    text = "" if value is None else str(value)
    cut = text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
    seen = (it if it.isprintable() else it.encode("unicode_escape").decode() for it in cut)
    return html.escape("".join(seen))
