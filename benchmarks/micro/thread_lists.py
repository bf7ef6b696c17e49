"""The inspector's list of threads over few and many: python -m benchmarks.micro.thread_lists.

One thread is saved, and copied by SQL, a second apart. Statements are those that SQLAlchemy sends.
Both sizes are asked in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks import machine, places, report
from benchmarks.micro.inspector import get
from locus_store import open_checkpointer
from locus_store.inspector import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FEW: Final = 1_000
PAGES: Final = {
    "first page": "threads",
    "the page behind it": "threads?after=thread%20{last}",
}

NUMBERS: Final = {
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})"
    " SELECT n FROM s) AS numbers",
    "postgresql": "generate_series(1, {count}) AS numbers(n)",
}
AGO: Final = {
    "sqlite": "numbers.n * 1000000",
    "postgresql": "make_interval(secs => numbers.n)",
}
MINUTE: Final = {
    "sqlite": "(t.active_at - {ago}) / 60000000 * 60000000",
    "postgresql": "date_trunc('minute', t.active_at - {ago})",
}
FILL: Final = """
INSERT INTO locus_threads (tenant, thread_id, created_at, active_at)
SELECT t.tenant, 'thread ' || numbers.n, t.created_at, {minute}
FROM locus_threads t, {numbers} WHERE t.thread_id = 'thread';
INSERT INTO locus_lines (tenant, thread_id, namespace, head, open_chain, open_bytes, floor,
  last_sequence, updated_at)
SELECT l.tenant, 'thread ' || numbers.n, l.namespace, l.head, l.open_chain, l.open_bytes, l.floor,
  l.last_sequence, l.updated_at - {ago}
FROM locus_lines l, {numbers} WHERE l.thread_id = 'thread';
INSERT INTO locus_checkpoints (line, sequence, chain, checkpoint_id, digest, created_at, payload)
SELECT others.line, c.sequence, c.chain, c.checkpoint_id, c.digest, c.created_at, c.payload
FROM locus_checkpoints c JOIN locus_lines l ON l.line = c.line, locus_lines others
WHERE l.thread_id = 'thread' AND others.thread_id <> 'thread';
ANALYZE
"""


async def fill(url: str, count: int) -> None:
    """Store a thread, and copies of it."""
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.backend.save("thread", {"n": 1})
    kind = "sqlite" if url.startswith("sqlite") else "postgresql"
    ago = AGO[kind]
    values = {"ago": ago, "minute": MINUTE[kind].format(ago=ago)}
    values["numbers"] = NUMBERS[kind].format(count=count - 1)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in FILL.format(**values).split(";"):
            connection.exec_driver_sql(statement)
    engine.dispose()


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that SQLAlchemy sends in the block."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


async def measure(
    urls: list[str], rounds: int, clock: Callable[[], float]
) -> list[tuple[object, ...]]:
    """Return a row for each page: statements and least milliseconds, of each database in turn."""
    rows: list[tuple[object, ...]] = []
    checkpointers = [open_checkpointer(url, state_type=dict) for url in urls]
    try:
        sides = [app(it.backend) for it in checkpointers]
        for name, page in PAGES.items():
            took: list[list[float]] = [[] for _ in sides]
            sent: list[int] = [0] * len(sides)
            for number in range(rounds + 1):
                for at, side in enumerate(sides):
                    with statements() as found:
                        begin = clock()
                        status, body = await get(side, page.format(last=199))
                        seconds = clock() - begin
                    if status != 200:
                        raise SystemExit(f"{page}: {status} {body[:400]!r}")
                    sent[at] = len(found)
                    took[at] += [seconds * 1e3] if number else []
            least = [min(it) for it in took]
            told = [f"{min(it):.1f} / {statistics.median(it):.1f}" for it in took]
            rows.append((name, *sent, *told, *(f"{it / least[0]:.2f} x" for it in least[1:])))
    finally:
        for it in checkpointers:
            await it.close()
    return rows


PAGE = """# The inspector's list of threads

Machine: {machine}; load average {load}. {place}. Statements of a page, and its milliseconds, least
and median of {rounds} rounds in turn: {clock}.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The inspector's list of threads, in ms.")
    parser.add_argument("--threads", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    places.add_place(parser)
    report.add_write(parser)
    options = parser.parse_args()
    with ExitStack() as stack:
        urls: list[str] = []
        for size in (FEW, options.threads):
            made = tempfile.TemporaryDirectory(prefix="locus-store-threads-")
            directory = Path(stack.enter_context(made))
            urls.append(stack.enter_context(places.place(options, directory)))
            asyncio.run(fill(urls[-1], size))
        clock = time.perf_counter if options.postgresql else time.process_time
        rows = asyncio.run(measure(urls, options.rounds, clock))
    told = [f"{FEW:,} threads", f"{options.threads:,}"]
    page = PAGE.format(
        machine=machine.described(),
        load=machine.load_average(),
        place="PostgreSQL" if options.postgresql else "SQLite",
        rounds=options.rounds,
        clock="time that passed" if options.postgresql else "CPU of the process",
        table=machine.table(("page", *(f"statements, {it}" for it in told), *told, "ratio"), rows),
    )
    name = f"thread-lists-{'postgresql' if options.postgresql else 'sqlite'}"
    report.publish(name, page, write=options.write)


if __name__ == "__main__":
    main()
