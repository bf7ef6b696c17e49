"""What the commands print: tables for people, JSON for programs, notes on standard error."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

DONE, FAILED, USAGE, PROBLEMS, NOT_FOUND, CONFLICT = range(6)
INTERRUPTED, READER_GONE = 130, 141

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, the message says why, or you answered no; 2 the command line"
    " makes no sense, or there was nobody to ask; 3 'check', 'verify' or 'doctor' found problems;"
    " 4 no such thread, version or user; 5 conflict, nothing was overwritten; 130 interrupted; 141"
    " whoever read the output, such as 'head', went away."
)

_UNLIMITED = 100_000
"""Columns of what is not a terminal: no table is cut or wrapped there."""

_FOLDED, _GAP = 10, 2
"""Columns of a terminal that a folded cell keeps, such as a date, and that are between two."""


# --- texts of users: ids, metadata and states may hold anything


def visible(value: object) -> str:
    """The text without anything that acts on a terminal: such characters as escapes."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def json_text(document: object, *, indent: bool = False) -> str:
    """JSON that reads back as exactly this, and that a terminal can be shown."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else None).decode()
    except TypeError:  # a lone surrogate: a byte of a file's name that is no UTF-8
        text = _standard_json(document, indent=indent)
    return _SPECIAL.sub(_escaped_in_json, text)


def _standard_json(document: object, *, indent: bool) -> str:
    form: Any = {"indent": 2} if indent else {"separators": (",", ":")}
    return json.dumps(document, default=datetime.isoformat, ensure_ascii=False, **form)


_SPECIAL = re.compile(r"[^\n\x20-\x7e]")


def _escaped_in_json(found: re.Match[str]) -> str:
    if found[0].isprintable() and _is_unicode(sys.stdout.encoding):
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")


def moment(time: datetime | None) -> str:
    """A time for a person."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time else ""


# --- standard output


def say(text: object) -> None:
    """Print one line."""
    _out().print(Text(visible(text)), soft_wrap=True)


def show(text: str) -> None:
    """Print lines as they are; each must be visible already."""
    _out().print(Text(text), soft_wrap=True)


def put_json(document: object) -> None:
    """Print one JSON document, the only thing on standard output."""
    sys.stdout.write(json_text(document, indent=True) + "\n")


def put_line(document: object) -> None:
    """Print one line of JSON Lines."""
    sys.stdout.write(json_text(document) + "\n")


def put_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, ids: Sequence[str] = ()
) -> None:
    """Print a table; on a terminal long cells are folded, but for ids, which can be copied.

    Where the ids leave no room, lines are longer than the terminal is wide.
    """
    console = _out()
    cells = [[_cell(it) for it in row] for row in rows]
    table = [[Text(name) for name in columns], *cells]
    widths = {name: max(row[at].cell_len for row in table) for at, name in enumerate(columns)}
    gaps = _GAP * (len(columns) - 1)
    _fold(widths, console.width - gaps, foldable=[it for it in columns if it not in ids])
    made = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width in widths.items():
        made.add_column(name, overflow="fold", width=width)
    for row in cells:
        made.add_row(*row)
    console.width = max(console.width, sum(widths.values()) + gaps)
    console.print(made)


def _fold(widths: dict[str, int], room: int, *, foldable: Sequence[str]) -> None:
    """Make the widest columns narrower until there is room, or all are as narrow as may be."""
    while sum(widths.values()) > room and foldable:
        widest = max(foldable, key=widths.__getitem__)
        if widths[widest] <= _FOLDED:
            return
        widths[widest] -= 1


def _cell(value: object) -> Text:
    return Text("" if value is None else visible(value))


def _out() -> Console:
    console = Console()
    if not sys.stdout.isatty():  # a Console is a terminal too where FORCE_COLOR is set
        console.width = _UNLIMITED
    return console


# --- standard error


def note(text: object) -> None:
    """Tell a person something beside the output."""
    Console(stderr=True).print(Text(visible(text)), soft_wrap=True)


@contextmanager
def progress(
    what: str, total: int | None = None, *, is_alone: bool = False
) -> Iterator[Callable[..., None]]:
    """A bar on standard error, where that is a terminal; gives what advances it by one.

    Args:
        what: What is being done.
        total: How many there are; ``None``: not known.
        is_alone: Nothing is printed on standard output meanwhile.
    """
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not sys.stderr.isatty() or not (is_alone or not sys.stdout.isatty()),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda *_: bar.advance(task)


# --- questions


def confirm(what: str) -> None:
    """Say what will be deleted, and ask.

    Raises:
        typer.Exit: The answer is not yes, or there is nobody to ask.
    """
    if not sys.stdin.isatty():
        note(what)
        note("Error: there is no terminal to ask on; say --yes to do it")
        raise typer.Exit(USAGE)
    console = Console(stderr=True)
    console.print(Text(f"{visible(what)} Go on? [y/N] "), soft_wrap=True, end="")
    console.file.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        note("Nothing was changed.")
        raise typer.Exit(FAILED)


def counted(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cut(value: Any, characters: int) -> str:
    """A value as visible JSON, cut where it is long."""
    text = value if isinstance(value, str) else json_text(value)
    if len(text) <= characters:
        return visible(text)
    return f"{visible(text[:characters])}… ({len(text):,} characters)"
