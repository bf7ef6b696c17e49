"""``locus-store bench``: the speed of the user's own database, in tables that are dropped."""

from __future__ import annotations

import asyncio
import importlib
import math
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import typer

from locus_store import __version__
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, make_options, run
from locus_store.cli.output import note, put_found, save_table, show_progress
from locus_store.errors import UnsupportedError
from locus_store.open import list_options, open_checkpointer
from locus_store.types import PendingWrite

Checkpointer = StorageBackendAdapter[dict[str, Any]]
Once = Callable[["_Threads", str], Awaitable[float]]

STATE_BYTES = (1_000, 100_000, 1_000_000)
WRITERS = (1, 16, 64)
MESSAGE_BYTES = 200
HISTORY = 10
"""Versions of a history."""

COLUMNS = ("operation", "state", "writers", "calls", "p50 ms", "p99 ms", "calls/s", "p50")
BAR = 24
LEAST_MS, MOST_MS = 0.1, 10_000.0
"""The ends of the bars, whose scale is logarithmic."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of one operation."""

    operation: str
    state_bytes: int
    writers: int
    calls: int
    p50_ms: float
    p99_ms: float
    per_second: float
    """Calls of all writers, in the time from the first to the last."""


def measure_storage(
    *,
    url: Url = DEFAULT_URL,
    seconds: Annotated[float, typer.Option(min=1, help="Time to measure, in all.")] = 120,
    state_bytes: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Size of a state; may be repeated.", show_default="1 KB to 1 MB"),
    ] = None,
    writers: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=1000, help="Concurrent callers; may be repeated.", show_default="1, 16, 64"
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the table to this file, as SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure saves, loads, lists, writes and histories on a SQL database.

    The tables have a prefix of their own and are dropped at the end, also after Ctrl-C or SIGTERM.
    All callers are tasks of this one process. A save changes one message of 200 bytes.

    --json: {version, database, results: [{operation, state_bytes, writers, calls, p50_ms, p99_ms,
    per_second}]}.
    """
    place = _Place.from_url(url)
    cases = [(size, count) for size in state_bytes or STATE_BYTES for count in writers or WRITERS]
    note(f"measuring for about {seconds:g} seconds in tables that begin with {place.prefix!r}")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        results = run(_measure_cases(place, cases, seconds))
    finally:
        place.drop()
        signal.signal(signal.SIGTERM, before)
    rows = [_make_row(it) for it in results]
    if svg is not None:
        save_table(svg, f"locus-store {__version__} on {place.database}", COLUMNS, rows)
    kept = [asdict(it) for it in results]
    document = {"version": __version__, "database": place.database, "results": kept}
    put_found(document, COLUMNS, rows, as_json=as_json)


def _make_row(result: Measured) -> tuple[object, ...]:
    share = math.log(result.p50_ms / LEAST_MS) / math.log(MOST_MS / LEAST_MS)
    bar = "#" * max(1, min(BAR, round(BAR * share)))
    times = f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}"
    size, per_second = _format_size(result.state_bytes), f"{result.per_second:,.0f}"
    return (result.operation, size, result.writers, result.calls, *times, per_second, bar)


def _format_size(state_bytes: int) -> str:
    for unit, size in (("MB", 1_000_000), ("KB", 1_000)):
        if state_bytes >= size:
            return f"{state_bytes / size:g} {unit}"
    return f"{state_bytes} B"


@dataclass(frozen=True, slots=True)
class _Place:
    """A database, and a prefix that no table has yet."""

    url: str
    prefix: str
    database: str

    @classmethod
    def from_url(cls, url: str) -> _Place:
        """Return the database that a URL names.

        Raises:
            InvalidArgumentError: It is not a valid URL.
            UnsupportedError: It has no tables.
        """
        if "auto_migrate" not in list_options(url):
            raise UnsupportedError(
                f"bench needs a SQL database, and this {url.partition(':')[0]}: URL names none"
            )
        place, mark, query = url.partition("?")
        kept = [it for it in query.split("&") if it.partition("=")[0] not in _NAMES]
        prefix = f"bench_{token_hex(3)}_"
        return cls(f"{place}{mark}{'&'.join(kept)}".rstrip("?"), prefix, place.partition(":")[0])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Checkpointer]:
        """Open a checkpointer that knows nothing of what others saved."""
        options = make_options(self.url, {"prefix": self.prefix}, creates=True)
        async with open_checkpointer(self.url, state_type=dict, **options) as checkpointer:
            await checkpointer.open()
            yield checkpointer

    def drop(self) -> None:
        """Drop the tables, if they were created."""
        migrate = importlib.import_module("locus_store.sql.migrate")
        if migrate.check(self.url, prefix=self.prefix).state != "missing":
            migrate.drop(self.url, prefix=self.prefix)


_NAMES = {"prefix", "table_name"}


class _Threads:
    """Threads of one size, one for each caller."""

    def __init__(self, place: _Place, state_bytes: int, writers: int) -> None:
        self.place = place
        self.state_bytes = state_bytes
        self.names = [f"{state_bytes}-{writers}-{number}" for number in range(writers)]
        self._dice = random.Random(state_bytes)  # noqa: S311  (test data)
        self._states = {name: self._make_state() for name in self.names}
        self.main: Checkpointer
        self.other: Checkpointer
        """Has the part of another process."""

    def _make_message(self) -> str:
        words = self._dice.choices(_WORDS, k=MESSAGE_BYTES // 6)
        return " ".join(words)[:MESSAGE_BYTES]

    def _make_state(self) -> dict[str, Any]:
        count = max(1, self.state_bytes // MESSAGE_BYTES)
        return {"step": 0, "messages": [self._make_message() for _ in range(count)]}

    async def save_changed(self, name: str) -> str:
        """Save the thread with another last message; return the checkpoint id."""
        state = self._states[name]
        messages = [*state["messages"][:-1], self._make_message()]
        self._states[name] = {"step": state["step"] + 1, "messages": messages}
        return await self.main.save(self._states[name], name)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = [
    "".join(random.Random(number).choices(_LETTERS, k=1 + number % 9))  # noqa: S311  (test data)
    for number in range(2_000)
]


async def _measure_time(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def _load_behind(threads: _Threads, name: str) -> float:
    await threads.save_changed(name)
    return await _measure_time(threads.other.load(name))


async def _put_writes(threads: _Threads, name: str) -> float:
    head = await threads.save_changed(name)
    write = PendingWrite(token_hex(8), 0, "messages", "bytes", bytes(MESSAGE_BYTES))
    return await _measure_time(threads.main.backend.put_writes(name, head, [write]))


async def _load_last_versions(checkpointer: Checkpointer, name: str) -> None:
    for checkpoint_id in await checkpointer.list_checkpoints(name, HISTORY):
        await checkpointer.load(name, checkpoint_id)


OPERATIONS: dict[str, Once] = {
    "save": lambda threads, name: _measure_time(threads.save_changed(name)),
    "load, known": lambda threads, name: _measure_time(threads.main.load(name)),
    "load, one behind": _load_behind,
    "list": lambda threads, name: _measure_time(threads.main.list_checkpoints(name)),
    "put_writes": _put_writes,
    f"history of {HISTORY}": lambda threads, name: _measure_time(
        _load_last_versions(threads.main, name)
    ),
}
COLD = "load, cold"


async def _measure_cases(
    place: _Place, cases: Sequence[tuple[int, int]], seconds: float
) -> list[Measured]:
    share = seconds / len(cases) / (len(OPERATIONS) + 1)
    found: list[Measured] = []
    with show_progress("measuring", len(cases) * (len(OPERATIONS) + 1)) as advance:
        async with place.open() as main, place.open() as other:
            for state_bytes, writers in cases:
                threads = _Threads(place, state_bytes, writers)
                threads.main, threads.other = main, other
                for _ in range(HISTORY):
                    await asyncio.gather(*map(threads.save_changed, threads.names))
                await asyncio.gather(*map(other.load, threads.names))
                for name, once in OPERATIONS.items():
                    found.append(await _measure(threads, name, once, share))
                    advance()
                found.append(await _measure_cold(threads, share))
                advance()
    return found


async def _measure(threads: _Threads, operation: str, once: Once, seconds: float) -> Measured:
    """Have each caller repeat an operation until the time is over, at least once."""
    start = time.perf_counter()
    times: list[float] = []

    async def repeat(name: str) -> None:
        times.append(await once(threads, name))
        while time.perf_counter() - start < seconds:
            times.append(await once(threads, name))

    await asyncio.gather(*map(repeat, threads.names))
    return _summarize(threads, operation, times, time.perf_counter() - start)


async def _measure_cold(threads: _Threads, seconds: float) -> Measured:
    """Load all threads by one new checkpointer after another, whose opening does not count."""
    times: list[float] = []
    took, end = 0.0, time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        async with threads.place.open() as fresh:
            start = time.perf_counter()
            times += await asyncio.gather(*(_measure_time(fresh.load(it)) for it in threads.names))
            took += time.perf_counter() - start
    return _summarize(threads, COLD, times, took)


def _summarize(threads: _Threads, operation: str, times: list[float], took: float) -> Measured:
    in_order = sorted(times)
    p50, p99 = (1000 * in_order[min(len(times) - 1, int(len(times) * it))] for it in (0.5, 0.99))
    return Measured(
        operation, threads.state_bytes, len(threads.names), len(times),
        round(p50, 3), round(p99, 3), round(len(times) / took, 1),
    )  # fmt: skip
