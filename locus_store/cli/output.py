"""Output of the commands: tables for people, JSON for programs, notes on standard error."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from locus_store.runtime.progress import watch

DONE, FAILED, USAGE, PROBLEMS, NOT_FOUND, CONFLICT = range(6)
INTERRUPTED, READER_GONE = 130, 141

EXIT_CODES = {
    DONE: "done",
    FAILED: "failed, the message says why, or you answered no",
    USAGE: "the command line is not valid, or a question needs a terminal",
    PROBLEMS: "'check', 'verify' or 'doctor' found problems",
    NOT_FOUND: "no such thread, version, user or tenant",
    CONFLICT: "conflict, nothing was overwritten",
    INTERRUPTED: "interrupted",
    READER_GONE: "broken pipe: the reader of the output, such as 'head', ended",
}
"""The exit codes that docs/cli.md lists."""

EPILOG = "Exit codes: 0 done, 1 failed, 2 usage, 3 problems, 4 not found, 5 conflict."

_UNLIMITED = 100_000
"""Columns of what is not a terminal: no table is cut or wrapped there."""

_GAP = 2
"""Columns of a terminal between two columns of a table."""


def escape(value: object) -> str:
    """Return the text with control characters, such as terminal escapes, made visible."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def render_json(document: object, *, indent: bool = False) -> str:
    """Return JSON that reads back exactly and is safe to show on a terminal."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else None).decode()
    except TypeError:  # a lone surrogate: a byte of a file's name that is no UTF-8
        form: Any = {"indent": 2} if indent else {"separators": (",", ":")}
        text = json.dumps(document, default=datetime.isoformat, ensure_ascii=False, **form)
    return _SPECIAL.sub(_escape_in_json, text)


def escape_json(line: bytes) -> bytes:
    """Return a line of JSON that is safe to show on a terminal, and reads back the same."""
    return _SPECIAL.sub(_escape_in_json, line.decode()).encode()


_SPECIAL = re.compile(r"[^\n\x20-\x7e]")


def _escape_in_json(match: re.Match[str]) -> str:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if match[0].isprintable() and encoding.startswith("utf"):
        return match[0]
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def format_time(time: datetime | None) -> str:
    """Return a time in a form for people."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if time else ""


def print_line(text: object) -> None:
    """Print one line."""
    _make_console().print(Text(escape(text)), soft_wrap=True)


def show(text: str, style: str = "") -> None:
    """Print lines unchanged; their text must be visible already."""
    _make_console().print(Text(text, style=style), soft_wrap=True)


def print_said(text: str) -> None:
    """Print a message, ``role: text``, with the role in its colour."""
    role, colon, said = text.partition(": ")
    style = _ROLES.get(role.split(" (")[0].strip(), "")
    shown = Text.assemble((escape(role + colon), style), escape(said))
    _make_console().print(shown, soft_wrap=True)


_ROLES = {
    **dict.fromkeys(("user", "human"), "bold blue"),
    **dict.fromkeys(("assistant", "ai", "model"), "bold green"),
    **dict.fromkeys(("tool", "function"), "bold yellow"),
    **dict.fromkeys(("system", "developer"), "bold magenta"),
}


def put_json(document: object) -> None:
    """Print one JSON document, the only output on standard output."""
    sys.stdout.write(render_json(document, indent=True) + "\n")


def put_line(document: object) -> None:
    """Print one line of JSON Lines."""
    sys.stdout.write(render_json(document) + "\n")


def select(item: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of an object by their names."""
    return {name: getattr(item, name) for name in names}


def put_found(
    document: object,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    ids: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Print a JSON document for programs, or a table for people."""
    if as_json:
        put_json(document)
    else:
        put_table(columns, rows, ids=ids)


def put_outcome(document: object, text: str, *, as_json: bool) -> None:
    """Print a JSON document for programs, or one line for people."""
    if as_json:
        put_json(document)
    else:
        print_line(text)


def put_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, ids: Sequence[str] = ()
) -> None:
    """Print a table, or a list of records if the terminal is too narrow for whole words.

    On a terminal long cells are folded between words. Ids are never folded, so that they can be
    copied.
    """
    console = _make_console()
    cells = [[_make_cell(it) for it in row] for row in rows]
    table = [[Text(name) for name in columns], *cells]
    widths = {name: max(row[at].cell_len for row in table) for at, name in enumerate(columns)}
    words = {
        name: max(cell_len(it) for row in table for it in ["", *row[at].plain.split()])
        for at, name in enumerate(columns)
    }
    least = {name: widths[name] if name in ids else words[name] for name in columns}
    room = console.width - _GAP * (len(columns) - 1)
    if sum(least.values()) > room:
        _put_records(console, columns, cells)
        return
    _fold(widths, room, least)
    console.print(_make_table(widths, cells))


def save_table(
    path: Path, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write a table to a file, as SVG."""
    cells = [[_make_cell(it) for it in row] for row in rows]
    table = [[Text(name) for name in columns], *cells]
    widths = {name: max(row[at].cell_len for row in table) for at, name in enumerate(columns)}
    width = sum(widths.values()) + _GAP * len(columns)
    console = Console(record=True, file=io.StringIO(), width=width)
    console.print(_make_table(widths, cells))
    path.write_text(_FONTS.sub("", console.export_svg(title=title)), encoding="utf-8")


_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich names fonts on a server; without them the picture is shown in a font of the machine."""


def _make_table(widths: dict[str, int], cells: list[list[Text]]) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width in widths.items():
        made.add_column(name, overflow="fold", width=width)
    for row in cells:
        made.add_row(*row)
    return made


def _fold(widths: dict[str, int], room: int, least: dict[str, int]) -> None:
    """Narrow the widest columns until the table fits."""
    while sum(widths.values()) > room:
        widest = max((it for it in widths if widths[it] > least[it]), key=widths.__getitem__)
        widths[widest] -= 1


def _put_records(console: Console, columns: Sequence[str], rows: list[list[Text]]) -> None:
    """Print a line for each cell, and an empty line between rows."""
    width = max(map(len, columns)) + _GAP
    for number, row in enumerate(rows):
        if number:
            console.print()
        for name, cell in zip(columns, row, strict=True):
            if cell:
                head = f"{name + ':' if name else '':<{width}}"
                console.print(Text(head) + cell, soft_wrap=True)


def _make_cell(value: object) -> Text:
    return Text("" if value is None else escape(value))


def _make_console() -> Console:
    console = Console()
    if not sys.stdout.isatty():  # a Console is a terminal too where FORCE_COLOR is set
        console.width = _UNLIMITED
    return console


def note(text: object) -> None:
    """Print a note on standard error."""
    Console(stderr=True).print(Text(escape(text)), soft_wrap=True)


def tell_more(how: str = "") -> None:
    """Print a note on how to see more than the limit."""
    note(f"There may be more: {how}a greater --limit.")


def tell_more_after(last: str) -> None:
    """Print this note for a list that continues after a name, if a terminal can show that."""
    tell_more(f"--after={shlex.quote(last)}, or " if last.isprintable() else "")


class _Bar:
    """A bar on standard error, to which the library reports its progress."""

    def __init__(self, what: str, total: int | None) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._total = total
        self._task = self.progress.add_task(what, total=total)

    def expect(self, steps: int) -> None:
        self._total = (self._total or 0) + steps
        self.progress.update(self._task, total=self._total)

    def step(self) -> None:
        self.progress.advance(self._task)


@contextmanager
def show_progress(
    what: str, total: int | None = None, *, prints: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error if that is a terminal; yield a function that advances it.

    Args:
        what: What is being done.
        total: How many there are; ``None``: the library reports how many.
        prints: Something is printed on standard output meanwhile.
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield lambda *_: None
        return
    bar = _Bar(what, total)
    with bar.progress, watch(bar):
        yield lambda *_: bar.step()


def confirm(what: str) -> None:
    """Print what will be deleted, and ask for confirmation.

    Raises:
        typer.Exit: The answer is not yes, or there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        note(what)
        note("Error: no terminal for the question; pass --yes to confirm")
        raise typer.Exit(USAGE)
    console = Console(stderr=True)
    console.print(Text(f"{escape(what)} Continue? [y/N] "), soft_wrap=True, end="")
    console.file.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        note("Nothing was changed.")
        raise typer.Exit(FAILED)


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 thread``, ``2 threads``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cut(value: Any, characters: int) -> str:
    """Return a value as visible JSON, truncated if it is long."""
    text = value if isinstance(value, str) else render_json(value)
    if len(text) <= characters:
        return escape(text)
    return f"{escape(text[:characters])}… ({len(text):,} characters)"


class OutputError(Exception):
    """Standard output cannot be written; the system's error is ``__cause__``.

    No ``OSError``, which Typer and Rich would take for their own concern.
    """


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise OutputError(f"standard output cannot be written: {exc.strerror}") from exc


class _Notes(io.FileIO):
    """Standard error without a buffer, so that nothing is written twice after Ctrl-C."""

    def write(self, data: Any, /) -> int:
        """Write as much as possible; ignore errors, since there is no way to report them."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        with suppress(OSError):
            while rest:
                rest = rest[super().write(rest) :]
        return size


@contextmanager
def repair_streams() -> Iterator[None]:
    """Make all three streams usable within the block: open, for any character, with one error."""
    before = sys.stdin, sys.stdout, sys.stderr
    # A closed stream is opened in the wrong mode: its use fails, and no file gets its number.
    sys.stdin = before[0] or _open_null(os.O_WRONLY, "r")
    sys.stdout = _guard_stream(before[1] or _open_null(os.O_RDONLY, "w"), _Output)
    sys.stderr = _guard_stream(before[2] or _open_null(os.O_RDONLY, "w"), _Notes)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _open_null(flags: int, mode: Literal["r", "w"]) -> TextIO:
    return open(os.open(os.devnull, flags), mode, encoding="utf-8", closefd=False)


def _guard_stream(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
    """Return the stream over ``raw``; a stream without a file, as in tests, is unchanged."""
    try:
        file = raw(stream.fileno(), "w", closefd=False)
    except OSError:
        return stream
    is_buffered = raw is _Output
    return io.TextIOWrapper(
        io.BufferedWriter(file) if is_buffered else file,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=bool(stream.line_buffering or getattr(stream, "write_through", False)),
        write_through=not is_buffered,
    )


def drop_output() -> None:
    """Discard buffered output, so that closing does not try to write it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
