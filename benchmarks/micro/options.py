"""Cost of options: python -m benchmarks.micro.options [--postgresql] [--rounds N].

Saves of a small state by one writer and by 64, with one option changed at a time, each in a
database of its own. All of them stay open and take turns; a ratio is the median of the ratios to
the default of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import deque
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks import machine, report
from benchmarks.comparisons.postgresql import POOL, Rate, counters, write
from benchmarks.places import server
from locus_store import postgresql_checkpointer, sqlite_checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

WRITERS = 64
INDEX = "a search index"
IDS = "`checkpoint_id` given"
COMMON: dict[str, dict[str, Any]] = {
    "default": {},
    "`keep_last=20`": {"keep_last": 20},
    "`ttl_seconds=86_400`": {"ttl_seconds": 86_400},
    IDS: {},
    INDEX: {},
}
Make = dict[str, "Callable[[], Any]"]


@contextmanager
def sqlite() -> Iterator[Make]:
    """Make a checkpointer with each option, on files."""
    with tempfile.TemporaryDirectory(prefix="locus-store-options-") as directory:
        files = (Path(directory) / f"{number}.db" for number in range(99))
        yield {
            **{
                name: lambda it=options: sqlite_checkpointer(next(files), state_type=dict, **it)
                for name, options in COMMON.items()
            },
            **{
                f"`synchronous=NORMAL`, {name}": lambda it=engine: sqlite_checkpointer(
                    engine=_normal(it), state_type=dict
                )
                for name, engine in {
                    "engine of aiosqlite": create_async_engine(
                        f"sqlite+aiosqlite:///{next(files)}"
                    ),
                    "synchronous engine": create_engine(f"sqlite:///{next(files)}"),
                }.items()
            },
        }


def _normal(engine: AsyncEngine | Engine) -> AsyncEngine | Engine:
    @event.listens_for(getattr(engine, "sync_engine", engine), "connect")
    def set_up(connection: Any, _: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


@contextmanager
def postgresql() -> Iterator[Make]:
    """Make a checkpointer with each option, on a server with fsync."""
    with server() as (running, _):

        def opened(parameters: str = "", **options: Any) -> Any:
            url = running.url(running.new_database())
            dsn = url + (("&" if "?" in url else "?") + parameters if parameters else "")
            return postgresql_checkpointer(dsn, pool_size=POOL, state_type=dict, **options)

        yield {
            **{name: lambda it=options: opened(**it) for name, options in COMMON.items()},
            "`synchronous_commit=off`": lambda: opened("options=-c%20synchronous_commit%3Doff"),
            "`group_saves=False`": lambda: opened(group_saves=False),
        }


class Side:
    """A checkpointer; the ids of its saves are given if ``name`` says so."""

    def __init__(self, name: str, checkpointer: Any) -> None:
        self._ids, self._checkpointer, self._saves = name == IDS, checkpointer, 0

    async def save(self, state: Any, thread_id: str) -> None:
        self._saves += 1
        given = f"v{self._saves}" if self._ids else None
        await self._checkpointer.save(state, thread_id, given)


async def measured(makers: Make, rounds: int) -> list[list[str]]:
    """A row for each option."""
    found: dict[str, list[tuple[Rate, Rate]]] = {name: [] for name in makers}
    async with AsyncExitStack() as stack:
        sides = {}
        for name, make in makers.items():
            checkpointer = await stack.enter_async_context(make())
            if name == INDEX:
                await checkpointer.backend.create_search_index()
            sides[name] = Side(name, checkpointer)
        for number in range(rounds + 1):
            order = deque(sides.items())
            order.rotate(number)  # a disk is still busy with the side before
            for name, side in order:
                one = await write(side, counters, f"one-{number}", 1, 100)
                many = await write(side, counters, f"many-{number}", WRITERS, 10)
                found[name].append((one, many))
    return [_row(name, rates[1:], found["default"][1:]) for name, rates in found.items()]


def _row(name: str, rates: list[tuple[Rate, Rate]], default: list[tuple[Rate, Rate]]) -> list[str]:
    pairs = list(zip(rates, default, strict=True))
    slower = [own.at(0.5) / other.at(0.5) for (own, _), (other, _) in pairs]
    faster = sorted(own.rate / other.rate for (_, own), (_, other) in pairs)
    return [
        name,
        f"{median(one.at(0.5) for one, _ in rates):.2f}",
        f"{median(slower):.2f} ({min(slower):.2f} to {max(slower):.2f})",
        f"{median(many.rate for _, many in rates):,.0f}",
        f"{median(faster):.2f} ({faster[0]:.2f} to {faster[-1]:.2f})",
    ]


PAGE = """# Cost of options on {title}

Machine: {machine}; load average {load}. A state of 1.2 KB of which one value changes. {rounds}
rounds in turn, medians; in brackets the spread. A ratio is the option's figure over the default's.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", action="store_true", help="in place of SQLite")
    parser.add_argument("--rounds", type=int, default=9)
    report.add_write(parser)
    options = parser.parse_args()
    name = "postgresql" if options.postgresql else "sqlite"
    with postgresql() if options.postgresql else sqlite() as makers:
        rows = asyncio.run(measured(makers, options.rounds))
    head = ("option", "one writer, p50 ms", "ratio", f"{WRITERS} writers, saves/s", "ratio")
    page = PAGE.format(
        title="PostgreSQL" if options.postgresql else "SQLite",
        machine=machine.described(),
        load=machine.load_average(),
        rounds=options.rounds,
        table=machine.table(head, rows),
    )
    report.publish(f"options-{name}", page, write=options.write)


if __name__ == "__main__":
    main()
