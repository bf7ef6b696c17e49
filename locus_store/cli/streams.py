"""Standard input, output and error, which may be closed, full or without Unicode."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


class OutputError(Exception):
    """Standard output cannot be written; the system's error is ``__cause__``.

    No ``OSError``, which Typer and Rich would take for their own concern.
    """

    @property
    def is_reader_gone(self) -> bool:
        """True if the reader closed the pipe, as ``head`` does."""
        return isinstance(self.__cause__, BrokenPipeError)


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
def standard_streams() -> Iterator[None]:
    """Make all three streams usable within the block: open, for any character, with one error."""
    before = sys.stdin, sys.stdout, sys.stderr
    # A closed stream is opened in the wrong mode: its use fails, and no file gets its number.
    sys.stdin = before[0] or _opened(os.O_WRONLY, "r")
    sys.stdout = _guarded(before[1] or _opened(os.O_RDONLY, "w"), _Output)
    sys.stderr = _guarded(before[2] or _opened(os.O_RDONLY, "w"), _Notes)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _opened(flags: int, mode: Literal["r", "w"]) -> TextIO:
    return open(os.open(os.devnull, flags), mode, encoding="utf-8", closefd=False)


def _guarded(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
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
