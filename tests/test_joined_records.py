"""Records joined into segments: the rules of ``versions.segments``, over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import random
import re
from copy import deepcopy
from datetime import timedelta
from shutil import copyfile
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import pytest
import sqlalchemy as sa
from tiers import ALL, first_of, full

from locus_store import IntegrityError, MemoryBackend, PostgreSQLBackend, SQLiteBackend
from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.runtime import observe
from locus_store.sql.threads import segments as joining
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.server_repository import LockingRepository
from locus_store.transfer.verifying import verify
from locus_store.types import Expected, PendingWrite, VersionsWanted
from locus_store.values import frames
from locus_store.values.encoding import MAX_STATE_BYTES, encode, pack_frame, unpack_frames
from locus_store.versions import decode_state_alone, segments
from locus_store.versions.archives import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from locus_store.sql.backend import SqlBackend
    from locus_store.types import Mark, Stored, Version
    from locus_store.versions.segments import RecordSegment

pytestmark = pytest.mark.anyio

RUNS = 24 if ALL else 2
STEPS = 60

FILLER = random.Random(1).randbytes(2000).hex()
"""A text beside which changes are small."""

CANARY = re.compile(rb"c[0-9]+x")


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def make(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[[], SqlBackend]:
    """Gives backends over one database."""
    if request.param == "sqlite":
        path = copyfile(request.getfixturevalue("migrated"), tmp_path / "joined.db")
        return lambda: SQLiteBackend(path)
    url = request.getfixturevalue("migrated_database")
    return lambda: PostgreSQLBackend(url, pool_size=2)


@pytest.fixture
async def backend(make: Callable[[], SqlBackend]) -> Any:
    async with make() as made:
        yield made


@pytest.fixture
def threes(monkeypatch: pytest.MonkeyPatch, failed_joins: list[Any]) -> list[Any]:
    """A call joins three records each; saves join none. Returns the reports of failed calls."""
    monkeypatch.setattr(segments, "RECORDS", 3)
    monkeypatch.setattr(segments, "is_time", lambda _: False)
    return failed_joins


class LockingDatabase(SQLiteDatabase):
    """An SQLite file with the reading statements of other databases."""

    repository = LockingRepository


class LockingBackend(SQLiteBackend):
    database = LockingDatabase


class Row(NamedTuple):
    """A record as it is stored."""

    line: int
    chain: int
    sequence: int
    payload: bytes
    has_own: bool
    """It has a payload, which is in no segment."""


def _rows(it: Any) -> tuple[list[Row], list[tuple[int, RecordSegment]]]:
    c = it.tables.checkpoints.c
    columns = *(c[name] for name in Row._fields[:-1]), c.payload.is_not(None)
    query = sa.select(*columns).order_by(c.line, c.sequence)
    lines = it.connection.execute(sa.select(it.tables.lines.c.line)).scalars().all()
    return [Row(*row) for row in it.connection.execute(query)], sorted(it.read_all_segments(*lines))


async def segments_in(backend: SqlBackend) -> list[tuple[int, int]]:
    """Return the first and last sequence of each segment."""
    _, found = await backend._read(_rows)
    return sorted((it.first, it.last) for _, it in found)


async def raw_in(backend: SqlBackend) -> list[int]:
    """Return the sequences of the records that have payloads of their own."""
    records, _ = await backend._read(_rows)
    return [it.sequence for it in records if it.has_own]


async def require_order(backend: SqlBackend) -> bytes:
    """Check which records have payloads, and where; return all that payloads hold."""
    records, found = await backend._read(_rows)
    for line, chain in {(it.line, it.chain) for it in records}:
        its = [it for it in records if (it.line, it.chain) == (line, chain)]
        mine = sorted(it for of, it in found if (of, it.chain) == (line, chain))
        joined = [at for it in mine for at in it.split_records()]
        assert joined == sorted(set(joined) & {it.sequence for it in its if not it.has_own})
        assert all(it.sequence > max(joined, default=0) for it in its if it.has_own)
    assert {(of, it.chain) for of, it in found} <= {(it.line, it.chain) for it in records}
    payloads = [*(it.payload or b"" for it in records), *(it.payload for _, it in found)]
    return b"".join(body for it in payloads for body in unpack_frames(it, 2**30))


async def change(backend: SqlBackend, statement: Callable[[sa.Table], Any]) -> None:
    await backend._write(lambda it: it.connection.execute(statement(it.tables.segments)))


async def put(backend: SqlBackend, end: int, **values: Any) -> None:
    """Change the segment that ends with a sequence."""
    await change(backend, lambda it: it.update().where(it.c.last == end).values(**values))


async def payload_at(backend: SqlBackend, last: int) -> bytes:
    _, found = await backend._read(_rows)
    return next(it.payload for _, it in found if it.last == last)


async def saved(backend: SqlBackend, texts: Iterable[str], thread: str = "t") -> dict[str, Any]:
    """Save a message after the other, as v1, v2 and so on; return the last state."""
    state: dict[str, Any] = {"filler": FILLER, "messages": []}
    for number, text in enumerate(texts, 1):
        state["messages"].append({"text": text})
        await backend.write_state(thread, state, checkpoint_id=f"v{number}")
    return state


def state_of(number: int) -> dict[str, Any]:
    """A state, of whose canary only this version has the key."""
    said = [{"text": f"said {it} times"} for it in range(1, number + 1)]
    return {"filler": FILLER, "messages": said, f"key c{number}x": f"c{number}x"}


async def joined_to(backend: SqlBackend, last: int, **options: Any) -> dict[str, dict[str, Any]]:
    """Save v1 to ``last`` and join them; return the states."""
    for number in range(1, last + 1):
        await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}", **options)
    await backend._join("t", options.get("namespace", ""))
    return {f"v{number}": state_of(number) for number in range(1, last + 1)}


async def require(
    make: Callable[[], SqlBackend],
    states: dict[str, dict[str, Any]],
    gone: Iterable[str] = (),
    *,
    thread: str = "t",
) -> None:
    """Check each version as an object that knows nothing loads it, and the order of records."""
    async with make() as cold:
        for name in sorted(states.keys() - set(gone)):
            assert await cold.load(thread, name) == states[name], name
        held = await require_order(cold)
    for name in gone:
        assert f"c{name[1:]}x".encode() not in held, name


class observed_facts:  # noqa: N801
    """Collects the facts of the operations within."""

    def __enter__(self) -> dict[str, Any]:
        self._facts: dict[str, Any] = {}
        self._count = observe.count

        def counted(fact: str, number: int, operation: Any = None) -> None:
            self._facts[fact] = self._facts.get(fact, 0) + number
            self._count(fact, number, operation)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("locus_store.backend.count", counted)
        return self._facts

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def noise() -> str:
    """Return a text that hardly anything makes shorter."""
    return random.randbytes(300).hex()


# --- what is joined, and when


async def test_each_64_records_are_joined_and_a_cold_load_reads_few_rows(
    make: Callable[[], SqlBackend], backend: SqlBackend
) -> None:
    state = await saved(backend, [noise() for _ in range(400)])
    await backend.close()
    async with make() as cold:
        with observed_facts() as facts:
            assert await cold.load("t") == state
        assert facts["rows"] == (6 + 16 if isinstance(backend, SQLiteBackend) else 6 + 1)
        found = [(at, at + 63) for at in range(1, 384, 64)]
        assert await segments_in(cold) == found
        await require_order(cold)


async def test_fewer_than_64_records_are_joined_at_the_beginning_of_a_chain_only(
    backend: SqlBackend,
) -> None:
    await saved(backend, ["x"] * 15)
    await backend._join("t", "")
    assert await segments_in(backend) == []
    await saved(backend, ["x"] * 40, "u")
    await backend._join("u", "")
    assert await segments_in(backend) == [(1, 40)]
    state = {"filler": FILLER, "messages": [{"text": "x"}] * 63}
    for number in range(63):
        await backend.write_state("u", state | {"number": number})
    await backend._join("u", "")
    assert await segments_in(backend) == [(1, 40)]
    await backend.write_state("u", state)
    await backend._join("u", "")
    assert await segments_in(backend) == [(1, 40), (41, 104)]
    await backend._join("none", "")


async def test_a_thread_is_written_and_replaced_as_it_was_before_its_records_were_joined(
    backend: SqlBackend, threes: list[Any]
) -> None:
    state = await saved(backend, ["x"] * 6)
    before = await backend.read_thread("t")
    await backend._join("t", "")
    assert await segments_in(backend) != []
    assert await backend.read_thread("t") != before
    assert await backend.write_thread(before) is False
    await backend.replace_thread(before, before)
    assert await backend.load("t") == state
    assert not threes


async def test_a_save_does_not_wait_for_records_that_are_joined(backend: SqlBackend) -> None:
    done = asyncio.Event()
    join = backend._join

    async def noted(*which: str) -> None:
        await join(*which)
        done.set()

    backend._join = noted  # type: ignore[method-assign]
    await saved(backend, [noise() for _ in range(63)])
    assert not done.is_set()
    await backend.write_state("t", {"messages": []})
    assert not done.is_set()
    await asyncio.wait_for(done.wait(), 30)


async def test_closing_waits_for_records_that_are_joined(make: Callable[[], SqlBackend]) -> None:
    async with make() as made:
        await saved(made, [noise() for _ in range(64)])
    async with make() as other:
        assert await segments_in(other) == [(1, 64)]


async def test_closing_waits_for_a_bounded_time(
    make: Callable[[], SqlBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locus_store.sql.connections.backend.BACKGROUND_SECONDS", 0.01)
    made, ended = make(), []

    async def never(*_: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    made._join = never  # type: ignore[method-assign]
    for number in range(64):
        await made.write_state("t", {"number": number})
    await asyncio.sleep(0)
    await made.close()
    await asyncio.sleep(0)
    assert ended == [True]
    await made.write_state("t", {"number": 64})  # it may be used again
    await made.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections of the loop that ended
def test_a_loop_may_end_before_records_are_joined(make: Callable[[], SqlBackend]) -> None:
    loop = asyncio.new_event_loop()
    made = make()

    async def save() -> None:
        for number in range(64):
            await made.write_state("t", {"number": number, "text": "word " * 300})

    loop.run_until_complete(save())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()

    async def read() -> None:
        assert await made.load("t") == {"number": 63, "text": "word " * 300}
        await made.close()

    asyncio.run(read())
    del loop
    gc.collect()


async def test_joining_waits_for_no_lock(migrated_database: str, threes: list[Any]) -> None:
    async with PostgreSQLBackend(migrated_database, pool_size=1) as backend:
        await saved(backend, ["a", "b", "c"])
        other = await asyncpg.connect(migrated_database)
        async with other.transaction():
            await other.execute("SELECT line FROM locus_lines FOR UPDATE")
            await asyncio.wait_for(backend._join("t", ""), 30)
            assert await segments_in(backend) == []
        await other.close()
        await backend._join("t", "")
        assert await segments_in(backend) == [(1, 3)]
    assert threes == []


def make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Return a task, as a program's own factory does."""
    return asyncio.Task(work, loop=loop, **options)


EAGER = getattr(asyncio, "eager_task_factory", make_task)  # of Python 3.12 and newer


@pytest.mark.parametrize("factory", [make_task, EAGER], ids=["own", "eager"])
async def test_a_program_may_have_a_task_factory(backend: SqlBackend, factory: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        await saved(backend, [noise() for _ in range(64)])
        await backend._background.get().finish(30)
    finally:
        loop.set_task_factory(None)
    assert await segments_in(backend) == [(1, 64)]


@pytest.mark.parametrize("error", [IntegrityError("not what was saved"), MemoryError()])
async def test_records_that_cannot_be_joined_fail_no_save(
    backend: SqlBackend, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def damaged(*_: object) -> RecordSegment:
        raise error

    monkeypatch.setattr(segments, "join_records", damaged)
    state = await saved(backend, [noise() for _ in range(130)])
    await backend._background.get().finish(30)
    assert await segments_in(backend) == []
    assert await backend.load("t") == state


OTHER = frames.encode_operations([["=", [], {"messages": []}]])


@pytest.mark.parametrize("wrong", ["all together", "a record", "the order"])
async def test_a_segment_that_does_not_give_the_saved_state_is_not_written(
    backend: SqlBackend, threes: list[Any], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    await saved(backend, ["a", "b", "c"])
    pack = segments._pack_segment

    def packed(parts: list[tuple[int, bytes]], *sealing: Any) -> bytes:
        (_, together), (_, first), *rest = parts
        if wrong == "all together":
            return pack([(0, OTHER), *parts[1:]], *sealing)
        if wrong == "a record":
            return pack([*parts[:-1], (parts[-1][0], OTHER)], *sealing)
        return pack([(0, together), (1, rest[0][1]), (2, first), *rest[1:]], *sealing)

    monkeypatch.setattr(segments, "_pack_segment", packed)
    await backend._join("t", "")
    assert await segments_in(backend) == []
    assert [(it[0], type(it[1])) for it in threes] == [("t", IntegrityError)]


# --- reading


async def test_every_version_loads_whatever_is_known(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states = await joined_to(backend, 10)
    assert await segments_in(backend) == [(1, 3), (4, 6), (7, 9)]
    assert await raw_in(backend) == [10]
    await require(make, states)
    marks = [it.mark for it in reversed(await backend.history("t", limit=100))]
    for upto in range(1, 11):
        for known in (None, *marks[:: 1 if ALL else 4]):
            for stored in await fetched(make, f"v{upto}", known):
                require_folds(stored, known, upto)
    for known in marks:
        require_folds(await backend.fetch_head("t", known=known), known, 10)


async def fetched(
    make: Callable[[], SqlBackend], name: str, known: Mark | None = None
) -> list[Stored | None]:
    """Return what each of the portable statements gives for a version."""
    made = make()
    if isinstance(made, SQLiteBackend):
        made = LockingBackend(str(made._database._path))
    async with made:
        return [
            await made._read(lambda it, fetch=fetch: fetch(it, "t", "", name, known))
            for fetch in (Reads.fetch, LockingRepository.fetch)
        ]


def require_folds(stored: Stored | None, known: Mark | None, upto: int) -> None:
    assert stored is not None
    is_basis = known is not None and known.sequence <= upto
    assert stored.basis == (known if is_basis else None)
    before = []
    if stored.basis is not None:
        before = [frames.encode_operations([["=", [], state_of(stored.basis.sequence)]])]
    assert frames.fold([*before, *stored.payloads], MAX_STATE_BYTES) == state_of(upto)
    if stored.basis is None:
        assert len(stored.payloads) <= 3 + 3


async def test_records_that_changed_nothing_are_in_no_segment_or_in_one(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states: dict[str, dict[str, Any]] = {}
    for number in range(1, 16):
        name = f"v{number}"
        states[name] = state_of(number - number % 3)
        await backend.write_state("t", states[name], checkpoint_id=name)
        await backend._join("t", "")
    assert len(await segments_in(backend)) > 1
    marks = [it.mark for it in await backend.history("t", limit=100)]
    for name, state in states.items():
        for known in (None, *marks[:: 1 if ALL else 4]):
            for stored in await fetched(make, name, known):
                assert stored is not None
                if stored.basis is None:
                    assert frames.fold(stored.payloads, MAX_STATE_BYTES) == state
    for name in ("v5", "v4", "v9", "v15", "v1"):
        await backend.remove("t", [name])
        del states[name]
        async with make() as cold:
            for other, state in states.items():
                assert await cold.load("t", other) == state
        await backend._join("t", "")
    assert threes == []


@pytest.mark.parametrize("at", range(1, 10))
async def test_an_object_that_knows_an_old_head_reads_on(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], at: int
) -> None:
    async with make() as other:
        for number in range(1, 11):
            await backend.write_state("t", state_of(number))
            if number == at:
                assert await other.load("t") == state_of(at)
            if number == 6:
                await backend._join("t", "")
        await backend._join("t", "")
        assert await other.load("t") == state_of(10)
        await other.write_state("t", state_of(11))
    assert await backend.load("t") == state_of(11)


async def test_whatever_is_listed_is_what_it_was_before(
    backend: SqlBackend, threes: list[Any]
) -> None:
    for namespace in ("", "sub"):
        for number in range(1, 9):
            metadata = {"n": [1.0, 10**17, None, "é\0"]} if number % 2 else {}
            await backend.write_state(
                "t",
                {**state_of(number), "word": f"needle{number}"},
                checkpoint_id=f"v{number}",
                metadata=metadata,
                namespace=namespace,
            )
            write = PendingWrite("task", 0, "channel", "type", b"written")
            await backend.put_writes("t", f"v{number}", [write], namespace=namespace)
    before = await told(backend)
    for namespace in ("", "sub"):
        await backend._join("t", namespace)
    assert await segments_in(backend) == [(1, 3), (1, 3), (4, 6), (4, 6)]
    assert await told(backend) == before
    [contents] = await backend.contents(await backend.history("t", limit=1))
    assert [sequence for sequence, *_ in contents.records] == [3, 6, 7, 8]


def plain(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [(*row[:-1], list(unpack_frames(row[-1], MAX_STATE_BYTES))) for row in rows]


def since(rows: Sequence[tuple[int, int, bytes]], first: int) -> Any:
    """The rows from a version on, and the states of the chains before it."""
    before: dict[int, list[bytes]] = {}
    for sequence, chain, payload in rows:
        if sequence < first:
            before.setdefault(chain, []).append(payload)
    states = {chain: frames.fold(some, MAX_STATE_BYTES) for chain, some in before.items()}
    return plain(it for it in rows if it[0] >= first), states


async def told(backend: SqlBackend) -> dict[str, Any]:
    """Return all that a backend tells of the thread, but how payloads are compressed."""

    def columns(it: Any) -> list[Any]:
        c = it.tables.checkpoints.c
        query = sa.select(*(column for column in c if column.name != "payload"))
        return list(map(tuple, it.connection.execute(query.order_by(c.line, c.sequence))))

    found: dict[str, Any] = {"columns": await backend._read(columns)}
    for namespace in ("", "sub"):
        which = {"namespace": namespace}
        found[f"history {namespace}"] = history = await backend.history("t", limit=100, **which)
        for first, last in ((1, 8), (2, 5), (4, 4), (8, 8)):
            records = await backend.records("t", first=first, last=last, **which)
            found[f"records {namespace} {first} {last}"] = since(records, first)
            sizes = await backend.measure_versions("t", first=first, last=last, **which)
            assert all(sizes.values())
            found[f"sizes {namespace} {first} {last}"] = sorted(sizes)
        found[f"states {namespace}"] = await backend.read_states(
            history, lambda it, folder: (it, folder.get_state())
        )
        for some in (history, history[2:4], history[-1:]):
            contents = await backend.contents(some)
            first = min(it.mark.sequence for it in some)
            found[f"contents {namespace} {len(some)}"] = [
                (it.line, since(it.records, first), it.writes) for it in contents
            ]
    found["newest"] = await backend.newest(VersionsWanted(thread_id="t"), 100)
    found["heads"] = await backend.heads()
    for word in ("needle2", "needle8", "needle", "said 3 times", "filler"):
        found[f"find {word}"] = await backend.find(word)
    thread = await backend.read_thread("t")
    assert thread is not None
    found["thread"] = [
        (it.namespace, it.head, it.writes, plain((one, one.payload) for one in it.records))
        for it in thread.lines
    ]
    for line in found["thread"]:
        line[3][:] = [(one.sequence, one.chain, one.digest, body) for one, body in line[3]]
    return found


async def test_joined_records_are_found_and_deleted_with_a_full_text_index(
    backend: SqlBackend, threes: list[Any]
) -> None:
    if isinstance(backend, PostgreSQLBackend):
        await joined_to(backend, 4)
        await backend.create_search_index()
    else:
        await backend.create_search_index()  # type: ignore[attr-defined]
        await joined_to(backend, 4)
    assert await segments_in(backend) == [(1, 3)]
    assert await backend.search("c2x") == ["t"]
    await backend.remove("t", ["v2"])
    assert await backend.search("c2x") == []
    assert await backend.search("c3x") == ["t"]


async def test_a_thread_of_joined_records_is_exported_and_restored(
    backend: SqlBackend, threes: list[Any]
) -> None:
    states = await joined_to(backend, 8)
    thread = await backend.read_thread("t")
    assert thread is not None
    memory = MemoryBackend()
    await memory.restore(thread)
    await backend.remove_thread("t")
    await backend.restore(thread)
    for name, state in states.items():
        assert await memory.load("t", name) == state
        assert await backend.load("t", name) == state
    assert await segments_in(backend) == []
    await backend._join("t", "")
    assert await segments_in(backend) == [(1, 3), (4, 6)]


async def test_a_copy_has_segments_of_its_own(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states = await joined_to(backend, 8)
    await backend.copy_thread("t", "u")
    await backend.remove("t", ["v2"])
    await require(make, states, thread="u")
    await backend.remove_thread("t")
    await require(make, states, thread="u")
    await backend.remove("u", ["v5"])
    await require(make, {it: states[it] for it in states if it != "v5"}, thread="u")


@pytest.mark.parametrize("at", ["v1", "v2", "v6", "v7"])
async def test_a_fork_of_a_thread_with_joined_records(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], at: str
) -> None:
    states = await joined_to(backend, 8)
    for number in range(10, 16):
        states[f"v{number}"] = state_of(number)
        await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}", parent_id=at)
        at = f"v{number}"
    await backend._join("t", "")
    assert await segments_in(backend) == [(1, 3), (4, 6), (9, 11), (12, 14)]
    await require(make, states)


async def test_side_branches_between_the_records_of_a_chain(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states: dict[str, dict[str, Any]] = {}
    older: Any = None
    for number in range(1, 10):
        state = state_of(number)
        written = await backend.write_state("t", state, checkpoint_id=f"v{number}")
        states[f"v{number}"] = state
        if older is not None:
            beside = {**state, "beside": f"c{number + 100}x"}
            side = await backend.write_state(
                "t",
                beside,
                checkpoint_id=f"v{number + 100}",
                expected=Expected(made_from=older, head=older),
                on_conflict="branch",
            )
            assert side.outcome == "side"
            states[f"v{number + 100}"] = beside
        older = written.mark
    await backend._join("t", "")
    assert await segments_in(backend) == [(1, 4), (6, 10), (12, 16)]
    await require(make, states)
    for gone in ("v103", "v2", "v108", "v9"):
        await backend.remove("t", [gone])
        del states[gone]
        await require(make, states)
        await backend._join("t", "")
        await require(make, states)


# --- records that are too large


@pytest.mark.parametrize("room", [12_000, *full(8_000, 14_000, 40_000)])
async def test_records_that_are_too_large_for_a_segment(
    make: Callable[[], SqlBackend],
    backend: SqlBackend,
    threes: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    room: int,
) -> None:
    monkeypatch.setattr(segments, "RECORD_BYTES", room)
    rng, states = random.Random(room), {}
    state: dict[str, Any] = {"filler": FILLER * 2, "messages": []}
    for number in range(1, 25):
        size = 5_500 if number % 7 == 6 else rng.randrange(10, 1_000)
        state["messages"].append({"text": rng.randbytes(size // 2).hex()})
        states[f"v{number}"] = deepcopy(state)
        await backend.write_state("t", state, checkpoint_id=f"v{number}")
        if number % 4 == 0:
            await backend._join("t", "")
            await require(make, states)
    assert threes == []
    assert bool(await segments_in(backend)) == (room > 8_000)
    for gone in ("v6", "v14", "v1"):
        await backend.remove("t", [gone])
        del states[gone]
        await require(make, states)
        await backend._join("t", "")
        await require(make, states)


async def test_records_of_many_stored_bytes_are_joined_before_they_are_64(
    make: Callable[[], SqlBackend], backend: SqlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "STORED_BYTES", 8_000)
    await saved(backend, [noise() for _ in range(40)])
    await backend._join("t", "")
    found = await segments_in(backend)
    assert 2 <= len(found) < 20
    assert found[-1][1] > 30
    await require_order(backend)


async def test_edits_all_over_a_text_take_the_bytes_of_the_edits(
    make: Callable[[], SqlBackend], backend: SqlBackend
) -> None:
    rng, states = random.Random(5), {}
    text = rng.randbytes(20_000).hex()
    for number in range(1, 129):
        at = rng.randrange(len(text) - 20)
        text = text[:at] + rng.randbytes(10).hex() + text[at + 20 :]
        states[f"v{number}"] = {"text": text}
        await backend.write_state("t", states[f"v{number}"], checkpoint_id=f"v{number}")
    await backend.close()
    async with make() as cold:
        _, found = await cold._read(_rows)
        [last] = [it.payload for _, it in found if it.last == 128]
    assert len(last) < 64 * 100
    await require(make, states)


# --- deletion


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (["v1"], []),
        (["v2"], []),
        (["v3"], []),
        (["v4"], [(1, 3)]),
        (["v5"], [(1, 3)]),
        (["v6"], [(1, 3)]),
        (["v9"], [(1, 3), (4, 6)]),
        (["v10"], [(1, 3), (4, 6), (7, 9)]),
        (["v1", "v9"], []),
        (["v6", "v9", "v10"], [(1, 3)]),
        (["v4", "v5", "v6"], [(1, 3)]),
        ([f"v{it}" for it in range(2, 10)], []),
        ([f"v{it}" for it in range(1, 10)], []),
    ],
)
async def test_a_deleted_version_is_in_no_payload_and_the_others_stay_readable(
    make: Callable[[], SqlBackend],
    backend: SqlBackend,
    threes: list[Any],
    gone: list[str],
    left: list[tuple[int, int]],
) -> None:
    states = await joined_to(backend, 10)
    await backend.remove("t", gone)
    assert await segments_in(backend) == left
    states = {name: it for name, it in states.items() if name not in gone}
    await require(make, states, gone)
    for number in range(20, 26):
        states[f"v{number}"] = state_of(number)
        await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}")
    await backend._join("t", "")
    await require(make, states, gone)
    assert threes == []


async def test_a_deletion_of_each_version_one_by_one(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states = await joined_to(backend, 13)
    names, gone = sorted(states), []
    random.Random(5).shuffle(names)
    for name in names:
        await backend.remove("t", [name])
        del states[name]
        gone.append(name)
        await require(make, states, gone)
        await backend._join("t", "")
        await require(make, states, gone)
    assert await segments_in(backend) == []
    assert threes == []


@pytest.mark.parametrize("way", ["remove_thread", "prune", "vacuum", "forget_user", "expire"])
async def test_what_removes_versions_removes_their_segments(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], way: str
) -> None:
    states = await joined_to(backend, 9)
    head: dict[str, dict[str, Any]] = {}
    if way == "remove_thread":
        await backend.remove_thread("t")
    elif way == "forget_user":
        await backend.write_state("t", {"metadata": {"user_id": "u"}}, metadata={"user_id": "u"})
        await backend.forget_user("u")
    elif way == "expire":
        await backend.write_state("t", {}, ttl_seconds=0.001)
        await asyncio.sleep(0.01)
        await backend.expire()
    else:
        head = {"v9": states["v9"]}
        if way == "prune":
            await backend.prune("t")
        else:
            await aged(backend)
            await backend.vacuum(1)
        assert len(await backend.history("t", limit=100)) == 1
    assert await segments_in(backend) == []
    await require(make, head, states.keys() - head)


async def aged(backend: SqlBackend) -> None:
    """Make all versions but the head two days older."""

    def run(it: Any) -> None:
        c = it.tables.checkpoints.c
        old = sa.select(c.created_at).where(c.sequence == 9).scalar_subquery()
        moment = it.connection.execute(sa.select(old)).scalar()
        before = moment - timedelta(days=2)
        update = it.tables.checkpoints.update().where(c.sequence < 9).values(created_at=before)
        it.connection.execute(update)

    await backend._write(run)


async def test_hidden_versions_are_swept_from_segments(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states: dict[str, dict[str, Any]] = {}
    for number in range(1, 200):
        states[f"v{number}"] = state_of(number)
        await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}", keep_last=5)
        if number % 10 == 0:
            await backend._join("t", "")
    shown = [it.checkpoint_id for it in await backend.history("t", limit=100)]
    assert shown == [f"v{it}" for it in range(199, 194, -1)]
    gone = [f"v{it}" for it in range(1, 60)]
    await require(make, {it: states[it] for it in shown}, gone)
    assert await segments_in(backend) != []
    assert threes == []


@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v6", "v8"])
async def test_a_save_with_the_id_of_a_joined_version_replaces_it(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], name: str
) -> None:
    states = await joined_to(backend, 8)
    states[name] = {**state_of(50), "again": 1}
    await backend.write_state("t", states[name], checkpoint_id=name)
    await require(make, states)
    assert f'"c{name[1:]}x"'.encode() not in await require_order(backend)
    await backend._join("t", "")
    await require(make, states)


# --- several that work on a thread


async def test_of_two_that_join_the_second_writes_nothing(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states = await joined_to(backend, 2)
    states["v3"] = state_of(3)
    await backend.write_state("t", state_of(3), checkpoint_id="v3")
    found, made = await prepared(backend)
    written = [await joined_as(backend, found, made) for _ in range(2)]
    assert written == [True, False]
    await require(make, states)


async def prepared(backend: SqlBackend) -> tuple[joining.Unjoined, RecordSegment]:
    found = await backend._read(lambda it: joining.find_unjoined(it, "t", ""))
    assert found is not None
    made = segments.join_records(*found[1:], MAX_STATE_BYTES)
    assert made is not None
    return found, made


async def joined_as(backend: SqlBackend, found: joining.Unjoined, made: RecordSegment) -> bool:
    return await backend._write(
        lambda it: joining.join(it, thread_id="t", namespace="", records=found, segment=made)
    )


@pytest.mark.parametrize("meanwhile", ["v1", "v4", "v5", "v6", "thread", "again"])
async def test_records_that_changed_meanwhile_are_not_joined(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], meanwhile: str
) -> None:
    states = await joined_to(backend, 5)
    for number in (6, 7):
        states[f"v{number}"] = state_of(number)
        await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}")
    found, made = await prepared(backend)
    assert (made.first, made.last) == (4, 6)
    gone = [meanwhile]
    if meanwhile.startswith("v"):
        await backend.remove("t", [meanwhile])
        del states[meanwhile]
    else:
        await backend.remove_thread("t")
        gone, states = sorted(states), {}
        if meanwhile == "again":  # the same versions, in another line
            gone, states = [], await joined_to(backend, 3)
    before = await segments_in(backend)
    assert not await joined_as(backend, found, made)
    assert await segments_in(backend) == before
    await require(make, states, gone)


async def test_two_objects_that_save_delete_and_join_lose_nothing(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any]
) -> None:
    states: dict[str, dict[str, Any]] = {}
    is_over = asyncio.Event()

    async def saves() -> None:
        rng = random.Random(7)
        for number in range(1, 90):
            states[f"v{number}"] = state_of(number)
            await backend.write_state("t", state_of(number), checkpoint_id=f"v{number}")
            if number % 5 == 0:
                name = rng.choice(sorted(states))
                await backend.remove("t", [name])
                del states[name]
            await asyncio.sleep(0)
        is_over.set()

    async def joins(other: SqlBackend) -> None:
        while not is_over.is_set():
            await other._join("t", "")
            await asyncio.sleep(0)

    async with make() as one, make() as two:
        await asyncio.gather(saves(), joins(one), joins(two))
        await one._join("t", "")
    await require(make, states, {f"v{it}" for it in range(1, 90)} - states.keys())
    assert len(await segments_in(backend)) > 3
    assert [it for it in threes if isinstance(it[1], IntegrityError)] == []


# --- damage


@pytest.mark.parametrize("last", first_of(3, 6))
async def test_a_damaged_byte_of_a_segment_is_an_error_or_changes_no_answer(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], last: int
) -> None:
    states = await joined_to(backend, 8)
    payload = await payload_at(backend, last)
    is_sqlite = isinstance(backend, SQLiteBackend)
    step = (1 if ALL else 61) if is_sqlite else 131
    for place in [*range(0, len(payload), step), len(payload) - 1]:
        flipped = bytearray(payload)
        flipped[place] ^= 1 << place % 8
        await put(backend, last, payload=bytes(flipped))
        async with make() as cold:
            for name in ("v8", "v4", "v5", "v6") if last == 6 else ("v8", "v2", "v3", "v5"):
                with pytest.raises(IntegrityError, match="thread 't'"):
                    await cold.load("t", name)
            if last == 6:  # the segment before it
                assert await cold.load("t", "v3") == states["v3"]
    for damaged in (payload[:-1], payload + b"\0", payload * 2, pack_frame(b""), OTHER):
        await put(backend, last, payload=damaged)
        async with make() as cold:
            with pytest.raises(IntegrityError, match="thread 't'"):
                await cold.load("t")


async def _swapped(backend: SqlBackend) -> None:
    await put(backend, 6, payload=await payload_at(backend, 3))


DAMAGES: dict[str, Callable[[SqlBackend], Any]] = {
    "of another chain": lambda it: put(it, 6, chain=2),
    "a later first": lambda it: put(it, 6, first=5),
    "an earlier first": lambda it: put(it, 6, first=2),
    "a first far behind": lambda it: put(it, 6, first=2**62),
    "a later last": lambda it: put(it, 6, last=7),
    "a last far behind": lambda it: put(it, 6, last=2**62),
    "an earlier last": lambda it: put(it, 6, last=5),
    "missing": lambda it: change(it, lambda table: table.delete().where(table.c.last == 6)),
    "all missing": lambda it: change(it, lambda table: table.delete()),
    "another's payload": _swapped,
    "of another line": lambda it: put(it, 6, line=99),
}


FEW = ("of another chain", "an earlier last", "missing", "another's payload")


@pytest.mark.parametrize("damage", [*FEW, *full(*(it for it in DAMAGES if it not in FEW))])
async def test_a_segment_in_the_wrong_place_is_an_error_or_changes_no_answer(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], damage: str
) -> None:
    states = await joined_to(backend, 8)
    history = await backend.history("t", limit=100)
    await DAMAGES[damage](backend)
    failed: list[tuple[Any, str]] = []
    for version in history:
        for way in (loaded, folded, replayed):
            try:
                assert await way(make, version) == states[version.checkpoint_id]
            except IntegrityError as exc:
                failed.append((way, str(exc)))
    assert failed
    assert all(way is replayed or "thread 't'" in told for way, told in failed)
    problems = [str(it) async for it in verify(backend) if isinstance(it, Problem)]
    assert [it for it in problems if it.startswith("thread 't'")]


async def loaded(make: Callable[[], SqlBackend], version: Version) -> Any:
    async with make() as cold:
        return await cold.load("t", version.checkpoint_id)


async def folded(make: Callable[[], SqlBackend], version: Version) -> Any:
    """Return a state as each of the portable statements gives it."""
    one, other = await fetched(make, version.checkpoint_id)
    assert one is not None
    assert other is not None
    state, _ = decode_state_alone(one, MAX_STATE_BYTES)
    assert decode_state_alone(other, MAX_STATE_BYTES)[0] == state
    return state


async def replayed(make: Callable[[], SqlBackend], version: Version) -> Any:
    """Return a state as lists read it."""
    async with make() as cold:
        return (await cold.read_states([version], lambda _, it: deepcopy(it.get_state())))[0]


@pytest.mark.parametrize("damage", [it for it in DAMAGES if it != "of another line"])
async def test_a_thread_with_a_damaged_segment_takes_saves_and_is_removed(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], damage: str
) -> None:
    await joined_to(backend, 8)
    await DAMAGES[damage](backend)
    async with make() as cold:
        for number in range(20, 30):
            await cold.write_state("t", state_of(number), checkpoint_id=f"v{number}", keep_last=3)
            await cold._join("t", "")
            assert await cold.load("t", f"v{number}") == state_of(number)
        assert (await cold.remove_thread("t")).existed
        assert await segments_in(cold) == []


async def test_verify_reports_nothing_of_whole_segments_and_the_thread_of_a_damaged_one(
    backend: SqlBackend, threes: list[Any]
) -> None:
    await joined_to(backend, 8)
    assert [it async for it in verify(backend) if isinstance(it, Problem)] == []
    payload = await payload_at(backend, 6)
    await put(backend, 6, payload=payload[:-1])
    found = [str(it) async for it in verify(backend, ["t"]) if isinstance(it, Problem)]
    assert len(found) == 1
    assert "thread 't'" in found[0]


async def test_verify_reports_segments_without_a_line(
    backend: SqlBackend, threes: list[Any]
) -> None:
    await joined_to(backend, 8)
    await put(backend, 6, line=99)
    found = [str(it) async for it in verify(backend) if isinstance(it, Problem)]
    assert ["1 segments belong to no line" in it for it in found].count(True) == 1


# --- anything, in any order


class Model:
    """A thread as it has to be, and steps that change it at random."""

    def __init__(self, backend: SqlBackend, seed: int) -> None:
        self.backend = backend
        self.rng = random.Random(seed)
        self.keep_last = self.rng.choice([None, None, 3, 70])
        self.versions: dict[str, dict[str, Any]] = {}
        self.at: dict[int, dict[str, Any]] = {}
        self.count = self.saves = 0
        self.may_lack = self.keep_last is not None
        self.state: dict[str, Any] = {"messages": [], "text": FILLER, "keys": {}}
        self.marks: list[Mark] = []

    def grown(self) -> dict[str, Any]:
        rng, state = self.rng, self.state
        self.count += 1
        canary = f"c{self.count}x"
        kind = rng.randrange(6)
        if kind <= 2:
            state["messages"].append({"text": canary * rng.randrange(1, 40)})
        elif kind == 3 and state["messages"]:
            state["messages"][rng.randrange(len(state["messages"]))]["text"] = canary
        elif kind == 4 and len(state["messages"]) > 3:
            del state["messages"][rng.randrange(3)]
            state["messages"].append({"new": canary})
        else:
            at = rng.randrange(len(state["text"]))
            state["text"] = state["text"][:at] + canary + state["text"][at + 3 :]
        state["keys"][canary] = self.count
        while len(state["keys"]) > 4:
            del state["keys"][min(state["keys"], key=state["keys"].__getitem__)]
        return deepcopy(state)

    async def save(self, name: str | None = None, *, changes: bool = True, **options: Any) -> None:
        before = deepcopy(self.state)
        state = self.grown() if changes else before
        self.saves += 1
        name = name or f"v{self.saves}"
        written = await self.backend.write_state(
            "t", state, checkpoint_id=name, keep_last=self.keep_last, **options
        )
        if written.outcome == "side":
            self.state = before
        name = written.checkpoint_id
        self.versions.pop(name, None)
        self.versions[name] = self.at[written.mark.sequence] = state
        self.marks = [*self.marks[-3:], written.mark]

    async def step(self) -> None:
        kind = self.rng.randrange(22)
        names = await self.shown()
        if kind < 10 or not names:
            await self.save()
        elif kind == 10:
            await self.save(changes=False)
        elif kind < 14:
            await self.backend._join("t", "")
        elif kind == 14:
            name = self.rng.choice(names)
            self.state = deepcopy(self.versions[name])
            await self.save(parent_id=name)
        elif kind < 18:
            await self.remove(self.rng.sample(names, min(len(names), self.rng.randrange(1, 5))))
        elif kind == 18:
            await self.save(self.rng.choice(names))
        elif kind == 19:
            older = self.rng.choice(self.marks)
            expected = Expected(made_from=older, head=older)
            await self.save(expected=expected, on_conflict="branch")
        elif kind == 20 and self.rng.random() < 0.2:
            await self.backend.prune("t")
            self.may_lack = True
        else:
            self.backend._known.drop((self.backend.tenant, "t", ""))

    async def remove(self, names: list[str]) -> None:
        await self.backend.remove("t", names)
        for name in names:
            del self.versions[name]

    async def shown(self) -> list[str]:
        """Return the ids of the visible versions; those that are not asked for are forgotten."""
        found = [it.checkpoint_id for it in await self.backend.history("t", limit=1000)]
        assert set(found) <= self.versions.keys()
        assert self.may_lack or set(found) == self.versions.keys()
        self.may_lack = self.keep_last is not None
        self.versions = {name: it for name, it in self.versions.items() if name in found}
        return found

    async def check(self, cold: SqlBackend) -> None:
        for name in await self.shown():
            assert encode(await cold.load("t", name)) == encode(in_order(self.versions[name]))
        held = await require_order(cold)
        records, _ = await cold._read(_rows)
        may_hold = b"".join(encode(self.at[it.sequence]) for it in records)
        assert set(CANARY.findall(held)) <= set(CANARY.findall(may_hold))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(it) for it in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(RUNS))
async def test_segments_change_nothing_whatever_is_done(
    make: Callable[[], SqlBackend], backend: SqlBackend, threes: list[Any], seed: int
) -> None:
    model = Model(backend, seed)
    async with make() as knowing:
        for number in range(STEPS):
            await model.step()
            if number % 6 == 5:
                async with make() as cold:
                    await model.check(cold)
            if number % 4 == 3 and await model.shown():
                assert await knowing.load("t") == await backend.load("t")
    assert threes == []
