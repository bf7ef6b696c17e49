"""PostgreSQL beside langgraph's AsyncPostgresSaver, in one run.

    python -m benchmarks.comparisons.postgresql

Starts a server of its own that writes as a real one does (fsync on). Both sides use a pool of 10
connections of one event loop and their public ``await`` interfaces. Prints Markdown;
``--write`` keeps it in benchmarks/results.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report, workloads
from benchmarks.places import server
from locus_store import AgentState, Message, postgresql_checkpointer
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POOL = 10
LAST = 20
"""Saves at the end whose median is "the 1,000th save"; loads as many."""


# --- the two sides, with the same two methods


class Ours:
    """A checkpointer."""

    name = "locus-store"

    def __init__(self, url: str, state_type: type[Any] = dict) -> None:
        self.url, self.state_type = url, state_type
        self._open = postgresql_checkpointer(url, pool_size=POOL, state_type=state_type)

    async def save(self, state: Any, thread_id: str) -> None:
        await self._open.save(state, thread_id)

    async def load(self, thread_id: str) -> Any:
        return await self._open.load(thread_id)

    async def warm(self) -> None:
        await self._open.exists("nobody")

    async def close(self) -> None:
        await self._open.close()


class Theirs:
    """A graph of one step a turn: one ``aput``, no input checkpoint and no pending writes."""

    name = "langgraph"

    def __init__(self, url: str, state_type: type[Any] = dict) -> None:
        del state_type
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        # As langgraph's documentation has it.
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self._pool = AsyncConnectionPool(
            url, min_size=POOL, max_size=POOL, kwargs=options, open=False
        )
        self._saver = AsyncPostgresSaver(self._pool)
        self._versions: dict[str, dict[str, Any]] = {}
        self._parents: dict[str, Any] = {}

    async def save(self, state: Any, thread_id: str) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        known = self._versions.get(thread_id, {})
        versions = {name: self._saver.get_next_version(known.get(name), None) for name in state}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = dict(state)
        checkpoint["channel_versions"] = versions
        config = self._parents.get(thread_id) or {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": ""}
        }
        metadata = {"source": "loop", "step": len(known), "parents": {}}
        self._parents[thread_id] = await self._saver.aput(config, checkpoint, metadata, versions)
        self._versions[thread_id] = versions

    async def load(self, thread_id: str) -> Any:
        found = await self._saver.aget_tuple({"configurable": {"thread_id": thread_id}})
        return found.checkpoint["channel_values"]

    async def warm(self) -> None:
        await self._pool.open(wait=True)
        await self._saver.setup()

    async def close(self) -> None:
        await self._pool.close()


SIDES: tuple[Callable[..., Any], ...] = (Theirs, Ours)


@asynccontextmanager
async def opened(side: Callable[..., Any], url: str, **options: Any) -> AsyncIterator[Any]:
    made = side(url, **options)
    await made.warm()
    try:
        yield made
    finally:
        await made.close()


# --- what is saved

TEXTS = [
    (workloads.prose(random.Random(2 * it), 400), workloads.prose(random.Random(2 * it + 1), 1000))
    for it in range(500)
]


def chat(state: dict[str, Any], step: int) -> None:
    """A turn more: two messages, 1.4 KB."""
    user, assistant = TEXTS[step % len(TEXTS)]
    state["messages"] += [
        {"role": "user", "content": user},
        {"role": "assistant", "content": assistant},
    ]


def counters(state: dict[str, Any], step: int) -> None:
    """1.2 KB that stays as large: a plan of which one step is done."""
    state.setdefault("plan", [{"step": it, "text": TEXTS[it][0][:100]} for it in range(10)])
    state["plan"][step % 10]["done"] = step
    state["messages"] = [{"role": "user", "content": f"step {step}"}]


STEPS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "a chat of {turns} turns": chat,
    "1.2 KB, one value changed": counters,
}


# --- measured


@dataclass
class Rate:
    """Saves of several writers."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.elapsed

    def at(self, part: float) -> float:
        """Milliseconds."""
        return sorted(self.seconds)[int(len(self.seconds) * part)] * 1e3


async def write(
    side: Any, step: Callable[[dict[str, Any], int], None], tag: str, writers: int, turns: int
) -> Rate:
    found = Rate()

    async def writer(number: int) -> None:
        state: dict[str, Any] = {"messages": []}
        for turn in range(turns):
            step(state, turn + 7 * number)
            begin = time.perf_counter()
            await side.save(state, f"{tag}-{number}")
            found.seconds.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(writer(it) for it in range(writers)))
    found.elapsed = time.perf_counter() - begin
    return found


async def writers(url: str, count: int, turns: int, repeats: int) -> list[list[object]]:
    rows = []
    for title, step in STEPS.items():
        rates: dict[str, list[Rate]] = {}
        for repeat in range(repeats):
            for side in SIDES:
                async with opened(side, url) as made:
                    await write(made, step, f"warm-{count}-{title}-{repeat}", min(count, 8), 5)
                    tag = f"{count}-{title}-{repeat}"
                    rates.setdefault(made.name, []).append(
                        await write(made, step, tag, count, turns)
                    )
        rows.append(row(title.format(turns=turns), count * turns, rates))
        print(" ", *rows[-1], flush=True)
    return rows


def row(title: str, saves: int, rates: dict[str, list[Rate]]) -> list[object]:
    """Medians of the repeats, and the ratios of them."""

    def middle(name: str, value: Callable[[Rate], float]) -> float:
        return statistics.median(value(it) for it in rates[name])

    values = [
        tuple(middle(name, value) for name in ("langgraph", "locus-store"))
        for value in (lambda it: it.rate, lambda it: it.at(0.5), lambda it: it.at(0.99))
    ]
    (their_rate, our_rate), (their_p50, our_p50), (their_p99, our_p99) = values
    return [
        title,
        f"{saves:,}",
        f"{their_rate:,.0f}",
        f"{our_rate:,.0f}",
        f"**{our_rate / their_rate:.1f}**",
        f"{their_p50:.2f}",
        f"{our_p50:.2f}",
        f"{their_p50 / our_p50:.1f}",
        f"{their_p99:.1f}",
        f"{our_p99:.1f}",
        f"{their_p99 / our_p99:.1f}",
    ]


@dataclass
class Thread:
    """A thread of 1,000 turns."""

    last_save: float = 0.0
    loads: dict[str, float] = field(default_factory=dict)
    total: int = 0
    final: int = 0


async def thread(side: Callable[..., Any], url: str, turns: int, *, typed: bool) -> Thread:
    found = Thread()
    state_type = AgentState if typed else dict
    seconds, behind = [], []
    async with (
        opened(side, url, state_type=state_type) as made,
        opened(side, url, state_type=state_type) as other,
    ):
        state: Any = None
        messages: list[Any] = []
        for plain in workloads.chat(turns):
            state = plain
            if typed:
                messages += [as_message(made.name, it) for it in plain["messages"][-2:]]
                state = {"messages": list(messages)}
                if made.name == Ours.name:
                    state = AgentState(agent_id="assistant", messages=tuple(messages))
            begin = time.perf_counter()
            await made.save(state, "long")
            seconds.append(time.perf_counter() - begin)
            if len(seconds) >= turns - LAST:
                behind.append(await load(other))
        found.final = len(encode(plain))
        found.last_save = statistics.median(seconds[-LAST:])
        known = [await load(made) for _ in range(LAST)]
    found.loads["by the saving process"] = statistics.median(known)
    found.loads["one version behind"] = statistics.median(behind[1:])
    cold = []
    for _ in range(LAST):
        async with opened(side, url, state_type=state_type) as made:
            cold.append(await load(made))
    found.loads["by another process"] = statistics.median(cold)
    return found


async def load(made: Any) -> float:
    """Return the seconds of one load."""
    begin = time.perf_counter()
    await made.load("long")
    return time.perf_counter() - begin


def as_message(name: str, plain: dict[str, str]) -> Any:
    """The messages of each side: LangChain's, and ours."""
    if name == Ours.name:
        return Message(role=plain["role"], content=plain["content"])
    from langchain_core.messages import AIMessage, HumanMessage

    kind = HumanMessage if plain["role"] == "user" else AIMessage
    return kind(plain["content"], id=f"{random.getrandbits(64):x}")


async def long_thread(running: Any, turns: int) -> tuple[list[list[object]], list[list[object]]]:
    times, sizes = [], []
    for title, typed in (("dicts", False), ("message objects", True)):
        found = {}
        for side in SIDES:
            database = running.new_database()
            found[side.name] = await thread(side, running.url(database), turns, typed=typed)
            found[side.name].total = database_bytes(running, database)
            running.drop_database(database)
        theirs, ours = found["langgraph"], found["locus-store"]
        pairs = [(f"save {turns:,}", theirs.last_save, ours.last_save)]
        pairs += [(f"load {name}", theirs.loads[name], it) for name, it in ours.loads.items()]
        for name, their, our in pairs:
            times.append(
                [f"{title}: {name}", f"{their * 1e3:.1f}", f"{our * 1e3:.1f}", f"{their / our:.1f}"]
            )
            print(" ", *times[-1], flush=True)
        sizes.append(
            [
                title,
                f"{theirs.final / 1e6:.2f} MB",
                *(f"{it.total / 1e6:.2f} MB" for it in (ours, theirs)),
                f"**{ours.total / ours.final:.2f} x**",
                f"{theirs.total / theirs.final:.0f} x",
            ]
        )
        print(" ", *sizes[-1], flush=True)
    return times, sizes


def database_bytes(running: Any, database: str) -> int:
    """Of all tables with their indexes and TOAST, after a vacuum."""
    running.execute("VACUUM FULL", database)
    return int(
        running.value(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'",
            database=database,
        )
    )


HEAD = (
    "state", "saves", "langgraph, saves/s", "ours", "times faster", "p50, ms", "ours",
    "times faster", "p99, ms", "ours", "times faster",
)  # fmt: skip
TEXT = """# Performance on PostgreSQL

Both libraries ran in turn on one server. Compare the ratios, not the times: the machine is small
and ran other programs, too. *Times faster* is above 1 where locus-store ("ours") is faster, and
below 1 where langgraph is.

Machine: {machine}; load average {load}. PostgreSQL {server}, fsync on, over loopback.
Compared: langgraph-checkpoint-postgres {peer} (`AsyncPostgresSaver`, pool of {pool}, one `aput` a
step). Ours: `postgresql_checkpointer(dsn)`, pool of {pool}.

## 64 writers

Each writer has its own thread, all in one event loop; the median of {repeats} runs.

{many}

## One writer

{one}

## A conversation of {turns:,} turns

Milliseconds; the median of {last}. *By the saving process*: the load only asks if the cached
version is still the head. *One version behind*: by another process, which knows the version before
and reads what was saved since. *By another process*: nothing is cached, and the whole state is
read, decompressed and verified against its digest. *Message objects*: LangChain's for langgraph,
those of locus-store for ours.

{thread}

Bytes of all tables, indexes and TOAST after `VACUUM FULL`, all {turns:,} versions kept, over the
final state's JSON.

{sizes}
"""


async def measure(options: argparse.Namespace) -> str:
    with server() as (running, database):
        url = running.url(database)
        print("64 writers")
        many = await writers(url, 64, options.turns, options.repeats)
        print("one writer")
        one = await writers(url, 1, options.turns * 4, options.repeats)
        print("one long thread")
        times, sizes = await long_thread(running, options.long)
        shown = running.value("SHOW server_version")
    return TEXT.format(
        machine=machine.described(),
        load=machine.load_average(),
        server=shown,
        peer=version("langgraph-checkpoint-postgres"),
        pool=POOL,
        repeats=options.repeats,
        last=LAST,
        turns=options.long,
        many=machine.table(HEAD, many),
        one=machine.table(HEAD, one),
        thread=machine.table(("", "langgraph", "ours", "times faster"), times),
        sizes=machine.table(
            ("state", "final JSON", "ours", "langgraph", "ours / JSON", "langgraph / JSON"), sizes
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100, help="of each of the 64 writers")
    parser.add_argument("--long", type=int, default=1000, help="turns of the long thread")
    parser.add_argument("--repeats", type=int, default=3)
    report.add_write(parser)
    options = parser.parse_args()
    report.publish("postgresql", asyncio.run(measure(options)), write=options.write)


if __name__ == "__main__":
    main()
