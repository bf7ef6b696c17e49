"""Packs: the rules of ``versions.packing``, over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from copy import deepcopy
from shutil import copyfile
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import pytest
import sqlalchemy as sa
from tiers import ALL, first_of

from locus_store import IntegrityError, PostgreSQLBackend, SQLiteBackend
from locus_store.runtime import observe
from locus_store.sql import packs
from locus_store.sql.reads import Reads
from locus_store.sql.row_locks import LockingRepository
from locus_store.transfer.verifying import verify
from locus_store.types import Expected, Pack
from locus_store.values import frames
from locus_store.values.encoding import MAX_STATE_BYTES, encode, unpack_frames
from locus_store.versions import packing
from locus_store.versions.archives import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.sql.backend import SqlBackend
    from locus_store.types import Stored

pytestmark = pytest.mark.anyio

RUNS = 24 if ALL else 6
STEPS = 60

FILLER = random.Random(1).randbytes(2000).hex()
"""A text beside which changes are small."""

CANARY = re.compile(r"c[0-9]+x")


class Row(NamedTuple):
    """A pack as it is stored."""

    line: int
    sequence: int
    basis: int | None
    payload: bytes


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def make(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[[], SqlBackend]:
    """Gives backends over one database."""
    if request.param == "sqlite":
        path = copyfile(request.getfixturevalue("migrated"), tmp_path / "packs.db")
        return lambda: SQLiteBackend(path)
    url = request.getfixturevalue("migrated_database")
    return lambda: PostgreSQLBackend(url, pool_size=2)


@pytest.fixture
async def backend(make: Callable[[], SqlBackend]) -> Any:
    async with make() as made:
        yield made


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call packs whatever is behind the packs; saves pack nothing."""
    monkeypatch.setattr(packing, "is_due", lambda stored: bool(stored.payloads))
    monkeypatch.setattr(packing, "is_time", lambda _: False)


async def packs_in(backend: SqlBackend) -> list[Row]:
    def look(it: Any) -> list[Row]:
        table = it.tables.packs
        columns = (table.c[name] for name in Row._fields)
        return [Row(*row) for row in it.connection.execute(sa.select(*columns)).all()]

    return sorted(await backend._read(look))


async def change(backend: SqlBackend, statement: Callable[[sa.Table], Any]) -> None:
    await backend._write(lambda it: it.connection.execute(statement(it.tables.packs)))


async def saved(backend: SqlBackend, texts: list[str], thread: str = "t") -> dict[str, Any]:
    """Save a message after the other, as v1, v2 and so on; return the last state."""
    state: dict[str, Any] = {"filler": FILLER, "messages": []}
    for number, text in enumerate(texts, 1):
        state["messages"].append({"text": text})
        await backend.write_state(thread, state, checkpoint_id=f"v{number}")
    return state


async def loaded(make: Callable[[], SqlBackend], *which: str) -> tuple[Any, dict[str, Any]]:
    """Return a state as an object that knows nothing loads it, and the facts of the load."""
    async with make() as cold:
        with observed_facts() as facts:
            return await cold.load("t", *which), facts


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
        self._patch.setattr("locus_store.runtime.observe.count", counted)
        return self._facts

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def noise() -> str:
    """Return a text that hardly anything makes shorter."""
    return random.randbytes(300).hex()


def bodies(payload: bytes) -> bytes:
    return b"".join(unpack_frames(payload or b"", MAX_STATE_BYTES))


# --- what is packed, and when


async def test_a_cold_load_of_a_long_thread_reads_few_rows(
    make: Callable[[], SqlBackend], backend: SqlBackend
) -> None:
    state = await saved(backend, [noise() for _ in range(400)])
    await backend.close()
    found, facts = await loaded(make)
    assert found == state
    rows = await packs_in(backend)
    assert [it.basis for it in rows] == [None, *(it.sequence for it in rows[:-1])]
    assert 2 <= len(rows) <= 6
    behind = 400 - rows[-1].sequence
    assert behind <= 128
    is_sqlite = isinstance(backend, SQLiteBackend)
    assert facts["rows"] == (len(rows) + behind if is_sqlite else 2)
    payload = sum(len(it.payload) for it in rows)
    assert payload < facts["read_bytes"] < 1.5 * payload


async def test_every_older_version_loads_from_the_packs_below_it(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None
) -> None:
    state: dict[str, Any] = {"filler": FILLER, "messages": []}
    for number in range(1, 13):
        state["messages"].append(str(number))
        await backend.write_state("t", state, checkpoint_id=f"v{number}")
        if number % 3 == 0:
            await backend._pack("t", "")
    assert [it.sequence for it in await packs_in(backend)] == [3, 6, 9, 12]
    for number in range(1, 13):
        found, facts = await loaded(make, f"v{number}")
        assert found["messages"] == [str(it) for it in range(1, number + 1)]
        assert "damaged_packs" not in facts


async def test_a_save_sends_what_it_sent_and_packs_afterwards(backend: SqlBackend) -> None:
    packed = asyncio.Event()
    pack = backend._pack

    async def noted(*which: str) -> None:
        await pack(*which)
        packed.set()

    backend._pack = noted  # type: ignore[method-assign]
    await saved(backend, [noise() for _ in range(63)])
    assert not packed.is_set()
    await backend.write_state("t", {"messages": []})
    assert not packed.is_set()  # the save did not wait
    await asyncio.wait_for(packed.wait(), 30)


LONG = random.Random(2).randbytes(5000).hex()


@pytest.mark.parametrize(
    "texts", [["x"] * 64, [LONG * 10], [f"{it} {LONG[it:]}" for it in range(64)]]
)
async def test_what_is_read_fast_is_not_packed(backend: SqlBackend, texts: list[str]) -> None:
    await saved(backend, texts)
    await backend._pack("t", "")
    assert await packs_in(backend) == []


async def test_closing_waits_for_a_pack(make: Callable[[], SqlBackend]) -> None:
    async with make() as made:
        await saved(made, [noise() for _ in range(64)])
    async with make() as other:
        assert len(await packs_in(other)) == 1


async def test_closing_waits_for_a_bounded_time(
    make: Callable[[], SqlBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locus_store.sql.packs.PACKING_SECONDS", 0.01)
    made, ended = make(), []

    async def never(*_: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    made._pack = never  # type: ignore[method-assign]
    for number in range(64):
        await made.write_state("t", {"number": number})
    await asyncio.sleep(0)
    await made.close()
    await asyncio.sleep(0)
    assert ended == [True]
    await made.write_state("t", {"number": 64})  # it may be used again
    await made.close()


def test_a_loop_may_end_before_a_pack_is_written(make: Callable[[], SqlBackend]) -> None:
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


async def test_a_pack_waits_for_no_lock(migrated_database: str, always_due: None) -> None:
    async with PostgreSQLBackend(migrated_database, pool_size=1) as backend:
        await packed_at(backend, 3)
        other = await asyncpg.connect(migrated_database)
        async with other.transaction():
            await other.execute("SELECT line FROM locus_lines FOR UPDATE")
            await asyncio.wait_for(backend._pack("t", ""), 5)
            assert await packs_in(backend) == []
        await other.close()
        await backend._pack("t", "")
        assert len(await packs_in(backend)) == 1


async def test_a_program_may_have_a_task_factory(backend: SqlBackend) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work: asyncio.Task(work, loop=loop))
    try:
        await saved(backend, [noise() for _ in range(64)])
        await backend._background.here().finish(30)
    finally:
        loop.set_task_factory(None)
    assert len(await packs_in(backend)) == 1


@pytest.mark.parametrize("error", [IntegrityError("not what was saved"), MemoryError()])
async def test_a_failed_pack_fails_no_save(
    backend: SqlBackend, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def damaged(*_: object) -> Pack:
        raise error

    monkeypatch.setattr(packing, "pack_of", damaged)
    state = await saved(backend, [noise() for _ in range(130)])
    await backend._background.here().finish(30)
    assert await packs_in(backend) == []
    assert await backend.load("t") == state


async def test_a_pack_that_does_not_give_the_saved_state_is_not_written(
    backend: SqlBackend, always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(backend, ["a", "b"])

    def wrong(stored: Stored, _: frames.Change) -> Pack:
        return Pack(stored.version.mark, None, frames.payload_of([["=", [], {"messages": []}]]))

    monkeypatch.setattr(packing, "_smallest", wrong)
    await backend._pack("t", "")
    assert await packs_in(backend) == []


@pytest.mark.parametrize("way", ["portable", "hot"])
async def test_a_pack_of_another_chain_is_not_read(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None, way: str
) -> None:
    first = await backend.write_state("t", {"filler": FILLER, "said": ["a"]})
    await backend.write_state("t", {"filler": FILLER, "said": ["a", "b"]})
    side = await backend.write_state(
        "t",
        {"filler": FILLER, "said": ["a", "x"]},
        expected=Expected(made_from=first.mark, head=first.mark),
        on_conflict="branch",
    )
    assert (side.outcome, side.mark.sequence) == ("side", 3)
    state = {"filler": FILLER, "said": ["a", "b", "c"]}
    await backend.write_state("t", state)
    payload = frames.payload_of([["=", [], {"filler": FILLER, "said": ["a", "x"]}]])
    values = {"line": side.mark.line, "sequence": 3, "digest": side.mark.digest}
    await change(backend, lambda it: it.insert().values(**values, payload=payload))
    if way == "hot":
        found, facts = await loaded(make)
        assert (found, "damaged_packs" in facts) == (state, False)
    else:
        for fetch in (Reads.fetch, LockingRepository.fetch):
            stored = await backend._read(lambda it, fetch=fetch: fetch(it, "t", ""))
            assert (stored.packs, len(stored.payloads)) == ([], 3)


# --- damage


@pytest.mark.parametrize("at", first_of(-1, 0))
async def test_a_damaged_byte_of_a_pack_changes_no_answer(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None, at: int
) -> None:
    state = await saved(backend, ["one", "two"])
    await backend._pack("t", "")
    state["messages"].append({"text": "three"})
    await backend.write_state("t", state)
    await backend._pack("t", "")
    row = (await packs_in(backend))[at]
    is_sqlite = isinstance(backend, SQLiteBackend)
    places = range(0, len(row.payload), 1 if ALL else 5) if is_sqlite else range(0, 60, 9)
    async with make() as cold:
        for place in places:
            flipped = bytearray(row.payload)
            flipped[place % len(flipped)] ^= 1 << place % 8
            await put_payload(backend, row, bytes(flipped))
            cold._known.drop(cold._line("t", ""))
            with observed_facts() as facts:
                assert await cold.load("t") == state
            assert facts["damaged_packs"] == 1


async def put_payload(backend: SqlBackend, row: Row, payload: bytes) -> None:
    await change(
        backend,
        lambda it: it.update().where(it.c.sequence == row.sequence).values(payload=payload),
    )


async def test_a_pack_of_another_state_changes_no_answer_and_is_reported_once(
    make: Callable[[], SqlBackend],
    backend: SqlBackend,
    always_due: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch_told()
    state = await saved(backend, ["one", "two"])
    await backend._pack("t", "")
    other = frames.payload_of([["=", [], {"messages": [{"text": "other"}]}]])
    await put_payload(backend, (await packs_in(backend))[0], other)
    with caplog.at_level(logging.WARNING, "locus_store"):
        for _ in range(2):
            found, facts = await loaded(make)
            assert (found, facts["damaged_packs"]) == (state, 1)
    assert len([it for it in caplog.messages if "packs are damaged" in it]) == 1
    assert [it for it in caplog.records if it.levelno > logging.WARNING] == []


def monkeypatch_told() -> None:
    observe._told_of_packs.clear()


async def test_damaged_packs_are_replaced(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None
) -> None:
    state = await saved(backend, ["one", "two"])
    await backend._pack("t", "")
    await put_payload(backend, (await packs_in(backend))[0], b"\2\0damaged")
    state["messages"].append({"text": "three"})
    await backend.write_state("t", state)
    await backend._pack("t", "")
    assert [(it.sequence, it.basis) for it in await packs_in(backend)] == [(3, None)]
    found, facts = await loaded(make)
    assert (found, "damaged_packs" in facts) == (state, False)


async def test_a_damaged_record_behind_the_packs_is_an_error(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None
) -> None:
    state = await saved(backend, ["one", "two"])
    await backend._pack("t", "")
    state["messages"].append({"text": "three"})
    await backend.write_state("t", state)

    def damage(it: Any) -> None:
        records = it.tables.checkpoints
        is_last = records.c.sequence == 3
        it.connection.execute(records.update().where(is_last).values(payload=b"\2\0damaged"))

    await backend._write(damage)
    with pytest.raises(IntegrityError, match="thread 't'"):
        await loaded(make)


async def test_a_record_missing_behind_the_packs_is_an_error(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None
) -> None:
    await saved(backend, ["one", "two"])
    await backend._pack("t", "")
    for text in ("three", "four"):
        state = await backend.load("t")
        state["messages"].append({"text": text})
        await backend.write_state("t", state)

    def lose(it: Any) -> None:
        records = it.tables.checkpoints
        it.connection.execute(records.delete().where(records.c.sequence == 3))

    await backend._write(lose)
    with pytest.raises(IntegrityError, match="thread 't'"):
        await loaded(make)


async def test_verify_reports_a_damaged_pack_and_removes_it_on_request(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 6, 2, 4, 6)
    assert [str(it) async for it in verify(backend) if isinstance(it, Problem)] == []
    row = (await packs_in(backend))[1]
    await put_payload(backend, row, row.payload[:-1])
    for drop_packs in (False, True):
        found = [str(it) async for it in verify(backend, ["t"], drop_packs=drop_packs)]
        assert "thread 't': pack 4 does not give the state of its version, pack 6" in found[0]
        assert len(await packs_in(backend)) == (0 if drop_packs else 3)
    assert [it async for it in verify(backend) if isinstance(it, Problem)] == []


async def test_verify_reports_a_pack_with_another_digest(
    backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 6, 2, 4, 6)
    await change(backend, lambda it: it.update().where(it.c.sequence == 4).values(digest=bytes(16)))
    found = [str(it) async for it in verify(backend, ["t"])]
    assert "thread 't': pack 4 does not give the state of its version, pack 6" in found[0]


async def test_verify_reports_packs_without_a_line(backend: SqlBackend, always_due: None) -> None:
    await packed_at(backend, 2, 2)
    await change(backend, lambda it: it.update().values(line=it.c.line + 7))
    found = [str(it) async for it in verify(backend) if isinstance(it, Problem)]
    assert ["1 packs belong to no line" in it for it in found] == [True]


# --- deletion


async def packed_at(backend: SqlBackend, last: int, *sequences: int) -> None:
    """Save v1 to ``last``, each with a canary, and pack at some of them."""
    state: dict[str, Any] = {"filler": FILLER, "messages": []}
    for number in range(1, last + 1):
        state["messages"].append({"text": f"c{number}x"})
        state[f"key c{number}x"] = number
        state.pop(f"key c{number - 1}x", None)
        await backend.write_state("t", state, checkpoint_id=f"v{number}")
        if number in sequences:
            await backend._pack("t", "")


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (["v1"], [2, 4, 6]),
        (["v2"], []),
        (["v3"], [2, 4, 6]),
        (["v4"], [2]),
        (["v5"], [2, 4, 6]),
        (["v6"], [2, 4]),
        (["v1", "v6"], [2, 4]),
        (["v7"], [2, 4, 6]),
    ],
)
async def test_a_pack_goes_with_its_version_and_with_its_basis(
    make: Callable[[], SqlBackend],
    backend: SqlBackend,
    always_due: None,
    gone: list[str],
    left: list[int],
) -> None:
    await packed_at(backend, 7, 2, 4, 6)
    assert [it.sequence for it in await packs_in(backend)] == [2, 4, 6]
    before = {f"v{it}": await backend.load("t", f"v{it}") for it in range(1, 8)}
    await backend.remove("t", gone)
    assert [it.sequence for it in await packs_in(backend)] == left
    async with make() as cold:
        with observed_facts() as facts:
            for name in before.keys() - set(gone):
                assert await cold.load("t", name) == before[name]
    assert "damaged_packs" not in facts


@pytest.mark.parametrize("way", ["remove_thread", "prune", "forget_user", "replace"])
async def test_what_removes_versions_removes_their_packs(
    backend: SqlBackend, always_due: None, way: str
) -> None:
    await packed_at(backend, 6, 2, 4, 6)
    if way == "remove_thread":
        await backend.remove_thread("t")
    elif way == "prune":
        await backend.prune("t")
    elif way == "forget_user":
        await backend.write_state("t", {"metadata": {"user_id": "u"}}, metadata={"user_id": "u"})
        await backend.forget_user("u")
    else:
        for number in range(1, 7):
            await backend.write_state(
                "t", {"filler": FILLER, "n": number}, checkpoint_id=f"v{number}"
            )
    assert await packs_in(backend) == []


async def test_an_expired_thread_takes_its_packs_along(
    backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 2, 2)
    await backend.write_state("t", {}, ttl_seconds=0.001)
    await asyncio.sleep(0.01)
    await backend.expire()
    assert await packs_in(backend) == []


async def test_a_copy_has_no_packs_and_loads(backend: SqlBackend, always_due: None) -> None:
    await packed_at(backend, 4, 2, 4)
    await backend.copy_thread("t", "u")
    assert len({it.line for it in await packs_in(backend)}) == 1
    assert await backend.load("u") == await backend.load("t")


async def test_a_pack_whose_version_was_removed_meanwhile_is_not_written(
    backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 3)
    stored = await backend._read(lambda it: it.fetch("t", ""))
    pack = packing.pack_of(stored, MAX_STATE_BYTES)
    await backend.remove("t", ["v3"])
    assert not await backend._write(lambda it: packs.add(it, "t", "", pack))
    await backend.remove_thread("t")
    assert not await backend._write(lambda it: packs.add(it, "t", "", pack))
    await packed_at(backend, 3)  # the same versions in another line
    assert not await backend._write(lambda it: packs.add(it, "t", "", pack))
    assert await packs_in(backend) == []


async def test_a_pack_whose_basis_was_removed_meanwhile_is_not_written(
    backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 4, 2)
    stored = await backend._read(lambda it: it.fetch("t", ""))
    pack = packing.pack_of(stored, MAX_STATE_BYTES)
    assert pack is not None
    assert pack.basis == 2
    await backend.remove("t", ["v2"])
    assert not await backend._write(lambda it: packs.add(it, "t", "", pack))
    assert await packs_in(backend) == []


async def test_of_two_that_pack_the_second_writes_nothing(
    backend: SqlBackend, always_due: None
) -> None:
    await packed_at(backend, 3)
    stored = await backend._read(lambda it: it.fetch("t", ""))
    pack = packing.pack_of(stored, MAX_STATE_BYTES)
    written = [await backend._write(lambda it: packs.add(it, "t", "", pack)) for _ in range(2)]
    assert written == [True, False]


# --- anything, in any order


class Model:
    """A thread as it has to be, and steps that change it at random."""

    def __init__(self, backend: SqlBackend, seed: int) -> None:
        self.backend = backend
        self.rng = random.Random(seed)
        self.keep_last = self.rng.choice([None, None, 3, 70])
        self.versions: dict[str, dict[str, Any]] = {}
        self.at: dict[int, dict[str, Any]] = {}
        self.count = 0
        self.may_lack = self.keep_last is not None
        self.state: dict[str, Any] = {"messages": [], "text": FILLER, "keys": {}}

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

    async def save(self, name: str | None = None, **options: Any) -> None:
        name = name or f"v{self.count}"
        state = self.grown()
        written = await self.backend.write_state(
            "t", state, checkpoint_id=name, keep_last=self.keep_last, **options
        )
        self.versions.pop(name, None)
        self.versions[name] = self.at[written.mark.sequence] = state

    async def step(self) -> None:
        kind = self.rng.randrange(20)
        names = await self.shown()
        if kind < 11 or not names:
            await self.save()
        elif kind < 13:
            await self.backend._pack("t", "")
        elif kind == 13:
            name = self.rng.choice(names)
            self.state = deepcopy(self.versions[name])
            await self.save(parent_id=name)
        elif kind < 17:
            await self.remove(self.rng.sample(names, min(len(names), self.rng.randrange(1, 5))))
        elif kind == 17:
            await self.save(self.rng.choice(names))
        elif kind == 18 and self.rng.random() < 0.2:
            await self.backend.prune("t")
            self.may_lack = True
        else:
            self.backend._known.drop(self.backend._line("t", ""))

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
        found = await self.shown()
        with observed_facts() as facts:
            for name in found:
                assert encode(await cold.load("t", name)) == encode(in_order(self.versions[name]))
        assert "damaged_packs" not in facts
        await self.check_packs()

    async def check_packs(self) -> None:
        payloads: list[bytes] = []
        records = await self.backend._read(lambda it: {row[1]: row[2] for row in digests(it)})
        for row in await packs_in(self.backend):
            payloads = [*(payloads if row.basis is not None else []), row.payload]
            state = frames.fold(payloads, MAX_STATE_BYTES)
            assert frames.shape_of(state).digest == records[row.sequence]
            may_hold = encode(self.at[row.sequence])
            if row.basis is not None:
                assert row.basis in records
                may_hold += encode(self.at[row.basis])
            canaries = CANARY.findall(bodies(row.payload).decode())
            assert set(canaries) <= set(CANARY.findall(may_hold.decode()))


def digests(it: Any) -> Any:
    records = it.tables.checkpoints
    return it.connection.execute(sa.select(records.c.line, records.c.sequence, records.c.digest))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(it) for it in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(RUNS))
async def test_packs_change_nothing_whatever_is_done(
    make: Callable[[], SqlBackend], backend: SqlBackend, always_due: None, seed: int
) -> None:
    model = Model(backend, seed)
    async with make() as cold:
        for number in range(STEPS):
            await model.step()
            if number % 6 == 5:
                await model.check(cold)
