"""``CheckpointSaver``: what a graph runner is promised, on every backend."""

from __future__ import annotations

import asyncio
import io
import secrets
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from shutil import copyfile

import anyio
import pytest
from drawer import Drawer
from lazily import TESTS_RUN
from tiers import SERVICES, full

import locus_store
from locus_store import (
    AgentState,
    CheckpointSaver,
    ConflictError,
    FileBackend,
    IntegrityError,
    InvalidArgumentError,
    MemoryBackend,
    NotFoundError,
    PostgreSQLBackend,
    SerializationError,
    SQLiteBackend,
    StorageBackendAdapter,
    open_saver,
)
from locus_store.backends import PostgreSQLCheckpointSaver, SQLiteCheckpointSaver
from locus_store.backends.documents import DocumentBackend
from locus_store.transfer.archive import export_threads, import_threads
from locus_store.transfer.copying import copy
from locus_store.transfer.verifying import verify
from locus_store.types import Expected

if TESTS_RUN:
    from locus_store import HTTPBackend, RedisBackend

pytestmark = pytest.mark.anyio


DOCUMENTS = ["documents", "oci", "opensearch"]  # one DocumentBackend
STORAGES = ["memory", "sqlite", *full("file", "postgresql", "redis", *DOCUMENTS, *SERVICES)]


@pytest.fixture(params=STORAGES)
def opened(request, tmp_path):
    """Makes backends on one storage."""
    if request.param == "memory":
        shared = MemoryBackend()
        return lambda: shared
    if request.param == "file":
        return partial(FileBackend, tmp_path / "files")
    if request.param == "documents":
        return lambda: DocumentBackend(Drawer(tmp_path / "drawer.db"))
    if request.param == "sqlite":
        migrated = request.getfixturevalue("migrated")
        return partial(SQLiteBackend, copyfile(migrated, tmp_path / "checkpoints.db"))
    if request.param == "oci":
        return request.getfixturevalue("bucket").backend
    return on_server(request)


def on_server(request):
    if request.param in SERVICES:
        return partial(HTTPBackend, request.getfixturevalue("service_over")(request.param))
    if request.param == "redis":
        return partial(RedisBackend, request.getfixturevalue("redis_url"))
    if request.param == "opensearch":
        return request.getfixturevalue("index").backend
    return partial(PostgreSQLBackend, request.getfixturevalue("migrated_database"), pool_size=4)


@pytest.fixture
async def saver(opened):
    async with CheckpointSaver(opened()) as made:
        yield made


@pytest.fixture
async def another(opened):
    """Makes savers on the same storage, from options."""
    made = []

    def make(**options):
        made.append(CheckpointSaver(opened(), **options))
        return made[-1]

    yield make
    for it in made:
        await it.close()


async def put(saver, name, parent=None, *, data=None, ns="", **options):
    data = {"n": name} if data is None else data
    return await saver.put(
        thread_id="t",
        checkpoint_id=name,
        checkpoint_data=data,
        checkpoint_ns=ns,
        parent_checkpoint_id=parent,
        **options,
    )


async def walk(saver, *names, ns="", **options):
    parent = None
    for name in names:
        parent = await put(saver, name, parent, ns=ns, **options)


async def write(saver, name, *writes, task_id="task", ns="", **options):
    await saver.put_writes(
        thread_id="t",
        checkpoint_id=name,
        task_id=task_id,
        writes=writes,
        checkpoint_ns=ns,
        **options,
    )


async def written(saver, name, ns=""):
    found = await saver.get_writes(thread_id="t", checkpoint_id=name, checkpoint_ns=ns)
    return [(it["task_id"], it["channel"], it["value"]) for it in found]


async def parents(saver, ns=""):
    """Checkpoints and their parents, newest first."""
    found = await saver.list_checkpoints(thread_id="t", checkpoint_ns=ns, limit=1_000)
    return {it["checkpoint_id"]: it["parent_checkpoint_id"] for it in found}


# --- the walk of a graph runner


async def test_a_step_is_put_written_to_read_and_listed(saver, another):
    data = {"channel_values": {"messages": ["hi"], "n": 1.0}, "v": 1, "é": None}
    assert await put(saver, "v1", data=data, metadata={"step": 0}) == "v1"
    await write(saver, "v1", ("messages", ["hi", "ho"]), ("n", 2), task_path="~1")
    await put(saver, "v2", "v1", data={"channel_values": {"n": 2}}, metadata={"step": 1})
    for it in (saver, another()):
        found = await it.get(thread_id="t", checkpoint_id="v1")
        assert found.keys() == {
            "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata", "created_at",
        }  # fmt: skip
        assert (found["checkpoint"], found["metadata"]) == (data, {"step": 0})
        assert type(found["checkpoint"]["channel_values"]["n"]) is float
        assert found["created_at"].endswith("+00:00")
        assert (await it.get(thread_id="t"))["parent_checkpoint_id"] == "v1"
        assert await it.get_writes(thread_id="t", checkpoint_id="v1") == [
            {
                "task_id": "task",
                "task_path": "~1",
                "idx": idx,
                "channel": channel,
                "value": value,
            }
            for idx, (channel, value) in enumerate([("messages", ["hi", "ho"]), ("n", 2)])
        ]
        listed = await it.list_checkpoints(thread_id="t")
        assert listed == [await it.get(thread_id="t"), found]
        assert await it.list_checkpoints(thread_id="t", before="v2") == [found]
        assert await it.list_checkpoints(thread_id="t", limit=1) == listed[:1]


async def test_what_is_not_there_is_none(saver):
    assert await saver.get(thread_id="t") is None
    assert await saver.list_checkpoints(thread_id="t") == []
    assert await saver.get_writes(thread_id="t", checkpoint_id="v") == []
    assert await saver.namespaces("t") == []
    await saver.delete_thread("t")
    await put(saver, "v")
    assert await saver.get(thread_id="t", checkpoint_id="w") is None
    assert await saver.get(thread_id="t", checkpoint_ns="a") is None
    with pytest.raises(NotFoundError, match="'w'"):
        await saver.list_checkpoints(thread_id="t", before="w")


async def test_what_is_returned_is_a_copy(saver):
    data = {"channel_values": {"c": [[1]]}}
    await put(saver, "v", data=data)
    await write(saver, "v", ("c", [[1]]))
    data["channel_values"]["c"].append(2)
    for _ in range(2):
        for found in (
            (await saver.get(thread_id="t"))["checkpoint"]["channel_values"]["c"],
            (await saver.list_checkpoints(thread_id="t"))[0]["checkpoint"]["channel_values"]["c"],
            (await written(saver, "v"))[0][2],
        ):
            assert found == [[1]]
            found[0].append("mine")


async def test_a_list_of_many_steps_is_exact(saver):
    said = [secrets.token_hex(20) for _ in range(260)]
    parent = None
    for n in range(260):
        parent = await put(saver, f"v{n}", parent, data={"channel_values": {"c": said[: n + 1]}})
    found = await saver.list_checkpoints(thread_id="t", limit=300)
    assert [it["checkpoint_id"] for it in found] == [f"v{n}" for n in range(259, -1, -1)]
    assert [it["checkpoint"]["channel_values"]["c"] for it in found] == [
        said[: n + 1] for n in range(259, -1, -1)
    ]


async def test_namespaces_are_lines_of_their_own(saver):
    long = "node:1|" * 60
    named = ["", "a", "a|b", long, long + "x", "é" * 300]
    for ns in named:
        await walk(saver, "v1", "v2", ns=ns, data={"ns": ns})
        await write(saver, "v2", ("c", ns), ns=ns)
    for ns in named:
        assert await parents(saver, ns) == {"v2": "v1", "v1": None}
        assert (await saver.get(thread_id="t", checkpoint_ns=ns))["checkpoint"] == {"ns": ns}
        assert await written(saver, "v2", ns) == [("task", "c", ns)]
    assert sorted(await saver.namespaces("t")) == sorted(named)
    await saver.delete_thread("t")
    assert await saver.namespaces("t") == []
    assert await written(saver, "v2", long) == []


# --- parents, forks, conflicts


async def test_without_a_parent_a_step_is_appended(saver):
    await put(saver, "v1")
    await put(saver, "v2")
    assert await parents(saver) == {"v2": "v1", "v1": None}


async def test_a_root_is_made_from_nothing(saver):
    await walk(saver, "v1", "v2")
    await put(saver, "root", is_root=True)
    assert await parents(saver) == {"root": None, "v2": "v1", "v1": None}
    assert (await saver.get(thread_id="t"))["checkpoint_id"] == "root"


async def test_a_fork_is_from_any_step_and_becomes_the_newest(saver):
    await walk(saver, "v1", "v2", "v3")
    await put(saver, "fork", "v1", fork=True)
    await put(saver, "next", "fork")
    assert await parents(saver) == {
        "next": "fork", "fork": "v1", "v3": "v2", "v2": "v1", "v1": None,
    }  # fmt: skip
    with pytest.raises(NotFoundError, match="'unknown'"):
        await put(saver, "w", "unknown", fork=True)


async def test_a_second_writer_is_told(saver, another):
    await put(saver, "v1")
    await put(another(), "theirs", "v1")
    with pytest.raises(ConflictError) as told:
        await put(saver, "mine", "v1")
    assert (told.value.head_id, told.value.parent_id) == ("theirs", "v1")
    assert await parents(saver) == {"theirs": "v1", "v1": None}


async def test_a_second_writer_is_kept_beside_where_it_asks(saver, another):
    await walk(saver, "v1", "v2")
    late = another(on_conflict="branch")
    assert await put(late, "mine", "v1") == "mine"
    assert await parents(saver) == {"mine": "v1", "v2": "v1", "v1": None}
    assert (await saver.get(thread_id="t"))["checkpoint_id"] == "v2"
    renamed = await put(late, "v2", "v1", data={"n": "other"})
    assert renamed != "v2"
    assert (await saver.get(thread_id="t", checkpoint_id=renamed))["checkpoint"] == {"n": "other"}


async def test_a_second_writer_wins_where_it_asks(saver, another):
    await walk(saver, "v1", "v2")
    await put(another(on_conflict="overwrite"), "mine", "v1")
    assert await parents(saver) == {"mine": "v1", "v2": "v1", "v1": None}
    assert (await saver.get(thread_id="t"))["checkpoint_id"] == "mine"


async def test_a_save_below_a_parent_that_was_created_again_is_a_conflict(saver, another):
    await walk(saver, "v1", "v2")
    other = another()
    if other.backend is saver.backend:
        pytest.skip("one object, which knows what it wrote itself")
    await other.delete_thread("t")
    await put(other, "v1")
    await put(other, "v2", "v1", data={"n": "another"})
    with pytest.raises(ConflictError):
        await put(saver, "v3", "v2")


def delete_before(monkeypatch, saver, method, delete):
    """Delete just before the backend's method writes."""
    real = getattr(saver.backend, method)

    async def late(*args, **kwargs):
        await delete()
        return await real(*args, **kwargs)

    monkeypatch.setattr(saver.backend, method, late)


async def test_writes_that_overtake_their_checkpoint_do_not_bring_a_deleted_thread_back(
    saver, another, monkeypatch
):
    await walk(saver, "v1", "v2")
    delete_before(monkeypatch, saver, "store_writes", partial(another().delete_thread, "t"))
    for ns in ("", "sub"):
        with pytest.raises(ConflictError, match="deleted"):
            await write(saver, "v3", ("n", 1), ns=ns)
    assert await another().backend.scan() == []


async def test_a_first_step_of_a_namespace_does_not_bring_a_deleted_thread_back(
    saver, another, monkeypatch
):
    await walk(saver, "v1", "v2")
    delete_before(monkeypatch, saver, "commit", partial(another().delete_thread, "t"))
    for options in ({}, {"is_root": True}, {"expected": Expected(made_from=None, head=None)}):
        with pytest.raises(ConflictError, match="deleted"):
            await put(saver, "s1", ns="sub", **options)
    assert await another().backend.scan() == []


async def test_of_many_that_go_on_from_one_step_one_wins(saver, another):
    await put(saver, "v1")
    results = await asyncio.gather(
        *(put(another(), f"w{n}", "v1") for n in range(6)), return_exceptions=True
    )
    assert sum(isinstance(it, ConflictError) for it in results) == 5
    assert len(await parents(saver)) == 2


async def test_a_step_that_is_put_again_stays_as_it_is(saver):
    await walk(saver, "v1", "v2")
    await write(saver, "v2", ("c", 1))
    before = await saver.list_checkpoints(thread_id="t")
    await put(saver, "v2", "v1")
    await put(saver, "v1")
    assert await saver.list_checkpoints(thread_id="t") == before
    assert await written(saver, "v2") == [("task", "c", 1)]


async def test_a_step_with_other_content_is_replaced_and_keeps_its_writes(saver):
    long = [secrets.token_hex(64) for _ in range(40)]
    await put(saver, "v1", data={"channel_values": {"c": long}})
    await write(saver, "v1", ("c", [*long, "new"]))
    await put(saver, "v1", data={"channel_values": {"c": ["other"]}})
    assert await written(saver, "v1") == [("task", "c", [*long, "new"])]
    assert await parents(saver) == {"v1": None}
    assert (await anext(verify(saver.backend))).versions == 1


# --- pending writes


async def test_special_writes_replace_and_others_stay(saver):
    for value in ("old", "new"):
        await write(saver, "v", ("c", value), ("__interrupt__", value), ("__error__", value))
    assert await written(saver, "v") == [
        ("task", "__interrupt__", "new"),
        ("task", "__error__", "new"),
        ("task", "c", "old"),
    ]


async def test_writes_of_a_run_that_was_not_seen_are_a_conflict(saver):
    await put(saver, "v")
    await write(saver, "v", ("c", 1), task_id="theirs")
    with pytest.raises(ConflictError):
        await write(saver, "v", ("c", 2), task_id="mine", seen=set())
    await write(saver, "v", ("c", 2), task_id="mine", seen={("theirs", 0)})
    assert await written(saver, "v") == [("mine", "c", 2), ("theirs", "c", 1)]


async def test_writes_while_their_step_is_put_wait_for_it(saver):
    long = [secrets.token_hex(64) for _ in range(40)]
    await asyncio.gather(
        put(saver, "v", data={"channel_values": {"c": long}}),
        *(write(saver, "v", ("c", [*long, n]), task_id=f"{n}") for n in range(8)),
    )
    assert await written(saver, "v") == [(f"{n}", "c", [*long, n]) for n in range(8)]
    thread = await saver.backend.read_thread("t")
    assert max(len(it.write.payload) for it in thread.lines[0].writes) < 300


async def test_writes_wait_for_the_first_put_of_their_thread(saver, monkeypatch):
    """Without the thread they are not stored by PostgreSQL's statement: a transaction makes it."""
    store, found = saver.backend.store_writes, []

    async def noted(put):
        found.append(put.must_exist)
        return await store(put)

    monkeypatch.setattr(saver.backend, "store_writes", noted)
    await asyncio.gather(put(saver, "v1"), write(saver, "v2", ("c", 1)))
    await put(saver, "v2", "v1")
    assert found == ["thread"]
    assert await written(saver, "v2") == [("task", "c", 1)]


async def test_what_cannot_be_kept_is_refused(saver):
    for bad in (float("nan"), b"bytes", {1, 2}, 2**64, {1: 2}):
        with pytest.raises(SerializationError):
            await put(saver, "v", data={"c": bad})
        with pytest.raises(SerializationError):
            await write(saver, "v", ("good", 1), ("c", bad))
        with pytest.raises(SerializationError):
            await put(saver, "v", metadata={"c": bad})
    for call in (
        put(saver, ""), put(saver, "x" * 256), put(saver, "v", ""), put(saver, "v", ns="a\0b"),
        write(saver, ""), write(saver, "v", ("", 1)), write(saver, "v", ("c", 1), task_id=""),
        write(saver, ["v"], ("c", 1)), write(saver, "v", (["c"], 1)),
        saver.get(thread_id=""), saver.get(thread_id="t", checkpoint_ns="\ud800"),
        saver.list_checkpoints(thread_id="t", limit=-1), saver.delete_for_runs([""]),
        saver.prune(["t"], strategy="all"), saver.delete_thread(""),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            await call
    assert await saver.backend.scan() == []


async def kept_bytes(saver, thread_id="t"):
    thread = await saver.backend.read_thread(thread_id)
    return sum(len(it.write.payload) for line in thread.lines for it in line.writes)


async def whole_lists(saver, steps=200):
    """A node that returns its whole list, so many times; what was said."""
    said, parent = [], None
    for n in range(steps):
        parent = await put(saver, f"v{n}", parent, data={"channel_values": {"messages": said}})
        said = [*said, {"text": secrets.token_hex(250)}]
        await write(saver, parent, ("messages", said), task_id=f"task {n}")
    return said


@pytest.mark.full
async def test_a_node_that_returns_its_whole_list_costs_what_it_added(saver, tmp_path):
    said = await whole_lists(saver)
    added = 200 * 500
    before = await kept_bytes(saver)
    assert before < 1.5 * added
    for n in (0, 1, 100, 199):
        assert await written(saver, f"v{n}") == [(f"task {n}", "messages", said[: n + 1])]

    await put(saver, "v100", "v99", fork=True, data={"channel_values": {"messages": ["other"]}})
    assert await written(saver, "v100") == [("task 100", "messages", said[:101])]
    assert await kept_bytes(saver) < before + 101 * 600

    await saver.copy_thread("t", "u")
    file, memory = io.BytesIO(), MemoryBackend()
    await export_threads(saver.backend, ["t"], file)
    await import_threads(memory, file.getvalue().splitlines(keepends=True))
    async with SQLiteCheckpointSaver(tmp_path / "copy.db") as other:
        await copy(saver.backend, other.backend, ["t"])
        for it in (CheckpointSaver(memory), other):
            assert await kept_bytes(it) == await kept_bytes(saver, "u") == await kept_bytes(saver)
            for n in (0, 50, 100, 199):
                assert await written(it, f"v{n}") == [(f"task {n}", "messages", said[: n + 1])]


@pytest.mark.full
async def test_the_stored_bytes_of_many_steps_are_linear(saver):
    await whole_lists(saver, 50)
    fifty = await kept_bytes(saver)
    await saver.delete_thread("t")
    await whole_lists(saver, 150)
    assert await kept_bytes(saver) < 3.5 * fifty


async def test_a_damaged_change_is_found_and_not_taken(saver):
    await whole_lists(saver, 10)
    thread = await saver.backend.read_thread("t")
    await saver.delete_thread("t")
    line = thread.lines[0]
    at, bad = next((n, it) for n, it in enumerate(line.writes) if it.write.basis is not None)
    flipped = bad.write.payload[:-1] + bytes([bad.write.payload[-1] ^ 1])
    for change in ({"payload": flipped}, {"basis": 9}, {"basis": 77}):
        damaged = replace(bad, write=replace(bad.write, **change))
        writes = [*line.writes[:at], damaged, *line.writes[at + 1 :]]
        with pytest.raises(IntegrityError):
            await saver.backend.write_thread(replace(thread, lines=[replace(line, writes=writes)]))
    assert await saver.backend.write_thread(thread) is True


async def test_a_damaged_change_in_a_database_is_found_by_verify(tmp_path, migrated):
    path = copyfile(migrated, tmp_path / "checkpoints.db")
    async with SQLiteCheckpointSaver(path) as saver:
        await whole_lists(saver, 5)
        assert [it.thread_id for it in [it async for it in verify(saver.backend)]] == ["t"]
    with closing(sqlite3.connect(path)) as connection, connection:
        where = "FROM locus_writes WHERE checkpoint_id = 'v3' AND basis IS NOT NULL"
        (payload,) = connection.execute(f"SELECT payload {where}").fetchone()
        flipped = payload[:-1] + bytes([payload[-1] ^ 1])
        connection.execute(
            "UPDATE locus_writes SET payload = ? WHERE checkpoint_id = 'v3'", [flipped]
        )
    async with SQLiteCheckpointSaver(path) as saver:
        found = [str(it) async for it in verify(saver.backend)]
        assert any("'v3'" in it for it in found)
        with pytest.raises(IntegrityError, match="'v3'"):
            await written(saver, "v3")
        assert len(await written(saver, "v4")) == 1


# --- threads


async def test_a_thread_is_copied_and_pruned(saver):
    await walk(saver, "v1", "v2", "v3")
    await walk(saver, "w1", "w2", ns="sub")
    await write(saver, "v1", ("c", 1))
    await write(saver, "v3", ("c", 3))
    await saver.copy_thread("t", "u")
    assert await saver.prune(["t", "unknown"]) == 3
    assert await parents(saver) == {"v3": None}
    assert await parents(saver, "sub") == {"w2": None}
    assert await written(saver, "v1") == []
    assert await written(saver, "v3") == [("task", "c", 3)]
    assert len(await saver.list_checkpoints(thread_id="u")) == 3
    assert await saver.prune(["u"], strategy="delete") == 5
    assert await saver.get(thread_id="u") is None
    for bad, error in (("unknown", NotFoundError), ("t", ConflictError)):
        with pytest.raises(error):
            await saver.copy_thread(bad, "t")


async def test_late_writes_of_a_pruned_step_are_dropped(saver, another):
    await walk(saver, "v1", "v2")
    await another().prune(["t"])
    await write(saver, "v1", ("c", 1))
    assert await written(saver, "v1") == []
    await put(saver, "v3", "v2")
    await another().delete_thread("t")
    with pytest.raises(ConflictError, match="gone"):
        await write(saver, "v2", ("c", 2))


async def test_late_writes_of_a_pruned_step_wait_for_the_next_step(saver, another, monkeypatch):
    await walk(saver, "v1")
    pruned, refused = anyio.Event(), anyio.Event()
    save, send = saver.backend.write_state, saver.backend.store_writes

    async def save_and_answer_late(*args, **options):
        saved = await save(*args, **options)
        await another().prune(["t"])
        pruned.set()
        await refused.wait()
        return saved

    async def send_and_note(*args, **options):
        try:
            return await send(*args, **options)
        except ConflictError:
            refused.set()
            raise

    monkeypatch.setattr(saver.backend, "write_state", save_and_answer_late)
    monkeypatch.setattr(saver.backend, "store_writes", send_and_note)
    async with anyio.create_task_group() as group:
        group.start_soon(put, saver, "v2", "v1")
        await pruned.wait()
        await write(saver, "v1", ("c", 1))
    assert await parents(saver) == {"v2": None}


async def test_what_is_rebuilt_keeps_what_it_is_rebuilt_from(saver):
    await walk(saver, "v1", "v2")
    await put(saver, "v3", "v2", rebuilt=["c"], metadata={"run_id": "r"})
    await put(saver, "v4", "v3", rebuilt=["c"])
    with pytest.raises(ConflictError, match="'v3'"):
        await saver.delete_for_runs(["r"])
    assert await saver.prune(["t"]) == 1
    assert await parents(saver) == {"v4": "v3", "v3": "v2", "v2": None}


async def test_runs_are_deleted_in_all_threads(saver):
    await walk(saver, "v1", metadata={"run_id": "a"})
    await put(saver, "v2", "v1", metadata={"run_id": "b"})
    await put(saver, "w", ns="sub", metadata={"run_id": "b"})
    assert await saver.delete_for_runs(["b", "c", "b"]) == 2
    assert await parents(saver) == {"v1": None}
    assert await saver.namespaces("t") == [""]


async def test_the_newest_are_kept_and_old_threads_expire(saver, another):
    await walk(another(keep_last=2), "v1", "v2", "v3")
    assert list(await parents(saver)) == ["v3", "v2"]
    await put(another(ttl_seconds=0.000001), "v4", "v3")
    with anyio.fail_after(30):  # until the server's clock has moved on
        while await saver.get(thread_id="t") is not None:
            pass


async def test_an_agents_thread_is_seen_here_and_the_other_way_round(saver):
    agent = StorageBackendAdapter(saver.backend)
    plain = StorageBackendAdapter(saver.backend, state_type=dict)
    state = AgentState(agent_id="a")
    await agent.save(state, "agent", "v1")
    found = await saver.get(thread_id="agent")
    assert (found["checkpoint_id"], found["checkpoint"]["agent_id"]) == ("v1", "a")
    await put(saver, "v1", data={"text": "an avocado"})
    assert (await plain.load("t"))["text"] == "an avocado"
    assert [it["thread_id"] for it in await plain.search("avocado")] == ["t"]


async def test_a_closed_saver_may_be_used_again(opened):
    async with CheckpointSaver(opened()) as saver:
        await put(saver, "v1")
    await put(saver, "v2", "v1")
    await saver.close()
    await saver.close()
    assert list(await parents(saver)) == ["v2", "v1"]
    await saver.close()


# --- opening


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(TypeError, match="takes a backend"):
        CheckpointSaver("memory://")
    for bad in (
        {"on_conflict": "fork"},
        {"keep_last": 0},
        {"keep_last": True},
        {"ttl_seconds": 0},
        {"ttl_seconds": float("nan")},
    ):
        (name,) = bad
        with pytest.raises(InvalidArgumentError, match=name):
            CheckpointSaver(MemoryBackend(), **bad)
        with pytest.raises(InvalidArgumentError, match=name):
            open_saver("memory://", **bad)
        with pytest.raises(InvalidArgumentError, match=name):
            SQLiteCheckpointSaver(":memory:", **bad)


def test_a_saver_is_opened_by_its_url(tmp_path):
    saver = open_saver("memory://", keep_last=3, ttl_seconds=60)
    assert (saver.on_conflict, saver.keep_last, saver.ttl_seconds) == ("raise", 3, 60)
    assert repr(saver) == "CheckpointSaver(MemoryBackend())"
    saver = open_saver(f"sqlite:///{tmp_path}/a.db?on_conflict=branch&keep_last=2&prefix=my_")
    assert (saver.on_conflict, saver.keep_last) == ("branch", 2)
    assert "my_" in repr(saver) or isinstance(saver.backend, SQLiteBackend)
    assert isinstance(open_saver(f"file://{tmp_path}/files").backend, FileBackend)
    with pytest.raises(TypeError, match="state_type"):
        open_saver("memory://", state_type=dict)
    with pytest.raises(TypeError):
        open_saver("memory://", unknown=1)
    for url in ("nothing://", "t", "memory://host", "memory://?keep_last=many"):
        with pytest.raises(InvalidArgumentError):
            open_saver(url)


async def test_savers_of_a_kind_take_their_backends_options(tmp_path, migrated_database):
    assert locus_store.SQLiteCheckpointSaver is SQLiteCheckpointSaver
    assert locus_store.PostgreSQLCheckpointSaver is PostgreSQLCheckpointSaver
    for saver in (
        SQLiteCheckpointSaver(tmp_path / "a.db", keep_last=1, prefix="my_", on_conflict="branch"),
        PostgreSQLCheckpointSaver(
            migrated_database, keep_last=1, pool_size=2, on_conflict="branch", ttl_seconds=60
        ),
    ):
        async with saver:
            await walk(saver, "v1", "v2")
            assert list(await parents(saver)) == ["v2"]
            assert (saver.on_conflict, saver.keep_last) == ("branch", 1)
    with pytest.raises(TypeError):
        SQLiteCheckpointSaver(tmp_path / "a.db", pool_size=2)
    with pytest.raises(InvalidArgumentError):
        PostgreSQLCheckpointSaver(migrated_database, pool_size=0)
