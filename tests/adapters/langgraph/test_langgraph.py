"""LangGraph's own conformance suite on every backend, and the promises that it does not notice."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from shutil import copyfile
from uuid import UUID

import anyio
import asyncpg
import pytest
from conformance import COUNTS, conforms
from lazily import TESTS_RUN
from tiers import SERVICES, first_of, full

import locus_store
from locus_store import (
    CheckpointSaver,
    ConflictError,
    FileBackend,
    InvalidArgumentError,
    MemoryBackend,
    NotFoundError,
    PostgreSQLBackend,
    SchemaError,
    SQLiteBackend,
    StorageBackendAdapter,
)
from locus_store.types.state import AgentState, Message

if TESTS_RUN:
    import yaml
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.checkpoint.conformance.capabilities import Capability

    from locus_store.adapters.langgraph import LangGraphSaver
    from locus_store.adapters.langgraph.loads import FIRST_SWEEP, MAX_ENTRIES

pytestmark = pytest.mark.anyio

SPECIAL = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}


STORAGES = [
    *("memory", "sqlite"),
    *full("postgresql", "file", "redis", "oci", "opensearch", "sharded", *SERVICES),
]


@pytest.fixture(params=STORAGES)
def opened(request, tmp_path):
    """Makes backends on one storage."""
    if request.param in SERVICES:
        return partial(
            locus_store.HTTPBackend, request.getfixturevalue("service_over")(request.param)
        )
    return direct_storage(request, tmp_path)


def direct_storage(request, tmp_path):
    if request.param == "memory":
        shared = MemoryBackend()
        return lambda: shared
    if request.param == "file":
        return partial(FileBackend, tmp_path / "files")
    if request.param == "sqlite":
        migrated = request.getfixturevalue("migrated")
        return partial(SQLiteBackend, copyfile(migrated, tmp_path / "checkpoints.db"))
    if request.param == "oci":
        return request.getfixturevalue("bucket").backend
    if request.param == "sharded":
        urls = [f"sqlite:///{tmp_path / name}" for name in "abc"]
        return lambda: locus_store.open_sharded(urls).backend
    return on_server(request)


def on_server(request):
    if request.param == "redis":
        return partial(locus_store.RedisBackend, request.getfixturevalue("redis_url"))
    if request.param in SERVICES:
        return partial(
            locus_store.HTTPBackend, request.getfixturevalue("service_over")(request.param)
        )
    if request.param == "opensearch":
        return request.getfixturevalue("index").backend
    return partial(PostgreSQLBackend, request.getfixturevalue("migrated_database"), pool_size=4)


@pytest.fixture
async def saver(opened):
    async with LangGraphSaver(opened()) as made:
        yield made


@pytest.fixture(params=["async", "sync"])
def ask(request, saver):
    """Calls a method of the saver in one of its two forms."""

    async def asked(name, *args, **kwargs):
        if request.param == "async":
            return await getattr(saver, f"a{name}")(*args, **kwargs)
        return await asyncio.to_thread(getattr(saver, name), *args, **kwargs)

    yield asked
    saver._portals.close()


def at(thread_id="t", checkpoint_ns="", checkpoint_id=None, **more):
    place = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, **more}
    return {"configurable": place | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def checkpoint(name, **values):
    return {
        "v": 4,
        "id": name,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {},
        "updated_channels": None,
    }


async def put(saver, name, config=None, metadata=None, **values):
    """Put a checkpoint; its config."""
    metadata = {"source": "loop", "step": 0, "parents": {}, **(metadata or {})}
    made = checkpoint(name, **values)
    return await saver.aput(config or at(), made, metadata, made["channel_versions"])


async def walk(saver, *names, thread_id="t", checkpoint_ns="", metadata=None):
    """Put checkpoints, each below the one before; the last one's config."""
    config = at(thread_id, checkpoint_ns)
    for step, name in enumerate(names):
        told = {"step": step, **(metadata or {})}
        config = await put(saver, name, config, told, n=step)
    return config


async def listed(saver, config, **options):
    return [it async for it in saver.alist(config, **options)]


async def ids(saver, config, **options):
    return [it.checkpoint["id"] for it in await listed(saver, config, **options)]


def tick():
    """Let the clock of the coarsest backend move on: SQLite's counts milliseconds."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= now:
        pass


async def date_back(backend, thread_id, age):
    """Make a thread as old as if it had been saved before."""
    thread = await backend.read_thread(thread_id)
    await backend.remove(thread_id)
    lines = [
        replace(line, records=[replace(it, created_at=it.created_at - age) for it in line.records])
        for line in thread.lines
    ]
    dates = {"created_at": thread.created_at - age, "active_at": thread.active_at - age}
    assert await backend.write_thread(replace(thread, lines=lines, **dates))


# --- LangGraph's suite


def test_the_suite_has_what_it_had():
    assert {it.value for it in Capability} == set(COUNTS)
    assert sum(COUNTS.values()) == 81


@pytest.mark.parametrize("capability", COUNTS)
async def test_the_conformance_suite_passes_and_skips_nothing(opened, capability):
    await conforms(opened, capability)


# --- pending writes


async def test_writes_come_back_by_task_path_task_and_place(saver):
    config = await put(saver, "v")
    await saver.aput_writes(config, [("c", 1), ("d", 2)], "b", "~2")
    await saver.aput_writes(config, [("c", 3)], "a", "~2")
    await saver.aput_writes(config, [("c", 4)], "z", "~1")
    await saver.aput_writes(config, [("c", 5)], "y")
    await saver.aput_writes(config, [("__error__", "e")], "b", "~2")
    found = (await saver.aget_tuple(config)).pending_writes
    assert found == [
        ("y", "c", 5),
        ("z", "c", 4),
        ("a", "c", 3),
        ("b", "__error__", "e"),
        ("b", "c", 1),
        ("b", "d", 2),
    ]
    assert [it.pending_writes for it in await listed(saver, at())] == [found]


async def test_special_writes_are_replaced_and_others_stay(saver):
    config = await put(saver, "v")
    for value in ("old", "new"):
        await saver.aput_writes(config, [(name, value) for name in SPECIAL], "special")
        await saver.aput_writes(config, [("c", value), ("__interrupt__", value)], "mixed")
    found = {(it[0], it[1]): it[2] for it in (await saver.aget_tuple(config)).pending_writes}
    assert found == {
        **{("special", name): "new" for name in SPECIAL},
        ("mixed", "c"): "old",
        ("mixed", "__interrupt__"): "new",
    }


async def test_writes_may_come_before_their_checkpoint_and_their_thread(saver):
    await saver.aput_writes(at(checkpoint_id="v"), [("c", [1, (2,)])], "task", "path")
    assert await saver.aget_tuple(at()) is None
    assert await saver.aget_tuple(at(checkpoint_id="v")) is None
    assert await listed(saver, None) == []
    config = await put(saver, "v", c=[1])
    assert (await saver.aget_tuple(config)).pending_writes == [("task", "c", [1, (2,)])]


async def test_writes_without_a_checkpoint_are_refused(saver):
    with pytest.raises(InvalidArgumentError, match="checkpoint_id"):
        await saver.aput_writes(at(), [("c", 1)], "task")


async def test_a_checkpoint_that_is_put_again_keeps_its_writes(saver):
    config = await put(saver, "v", c=["x" * 99] * 99)
    await saver.aput_writes(config, [("c", ["x" * 99] * 99 + ["new"])], "task")
    await put(saver, "v", c=["x" * 99] * 99)
    assert len(await ids(saver, at())) == 1
    await put(saver, "v", c=["other"])
    found = await saver.aget_tuple(at())
    assert found.checkpoint["channel_values"] == {"c": ["other"]}
    assert found.pending_writes == [("task", "c", ["x" * 99] * 99 + ["new"])]
    assert [it.pending_writes for it in await listed(saver, at())] == [found.pending_writes]


# --- metadata and lists


async def test_metadata_is_merged_with_the_config(saver):
    config = at(run_id="r", text="nul\0", number=1.0, flag=True, thing=[1], __hidden=1)
    config["metadata"] = {"of_config": "a", "step": 99, "langgraph_node": "n"}
    await put(saver, "v", config, {"step": 7, "writes": {"n": 1}})
    found = (await saver.aget_tuple(at())).metadata
    assert found == {
        "source": "loop",
        "step": 7,
        "parents": {},
        "of_config": "a",
        "run_id": "r",
        "text": "nul",
        "number": 1.0,
        "flag": True,
    }
    assert type(found["number"]) is float


async def test_filters_are_typed_and_their_keys_literal(saver):
    odd = {"$gt": 1, "a'b": 2, 'a"b': 3, "a.b": 4, "a[0]": 5, "": 6, "%": 7, "é": 8, "a\\": 9}
    await put(saver, "v0", None, {**odd, "n": 10, "f": 1.5, "none": None, "o": {"$gt": 1}})
    await put(saver, "v1", None, {"n": "10", "o": {"$gt": 2}, "l": [1]})
    for key, value in odd.items():
        assert await ids(saver, at(), filter={key: value}) == ["v0"]
        assert await ids(saver, None, filter={key: value}) == ["v0"]
    assert await ids(saver, at(), filter={"n": 10}) == ["v0"]
    assert await ids(saver, at(), filter={"n": "10"}) == ["v1"]
    assert await ids(saver, at(), filter={"n": 9}) == []
    assert await ids(saver, at(), filter={"f": 1.5, "n": 10}) == ["v0"]
    assert await ids(saver, at(), filter={"f": 1.5, "n": "10"}) == []
    assert await ids(saver, at(), filter={"none": None}) == ["v0"]
    assert await ids(saver, at(), filter={"o": {"$gt": 1}}) == ["v0"]
    assert await ids(saver, at(), filter={"l": [1]}) == ["v1"]
    assert await ids(saver, at(), filter={"l": 1}) == []
    assert await ids(saver, at(), filter={}) == ["v1", "v0"]


FILTERS = [
    ({"user.id": 7}, ["v0"]),
    ({"user.id": "7"}, []),
    ({"user.address.city": "Oslo"}, ["v1"]),
    ({"user.address": {"city": "Oslo"}}, ["v1"]),
    ({"user": {"id": 7}}, ["v0"]),
    ({"user": {"address": {"city": "Oslo"}}}, ["v1"]),
    ({"user": {"id": 8, "name": "Bo"}}, ["v1"]),
    ({"user": {"id": 8, "name": "Al"}}, []),
    ({"user": {}}, ["v1", "v0"]),
    ({"user": {"id": True}}, []),
    ({"tags": ["eu"]}, ["v1", "v0"]),
    ({"tags": ["eu", "new"]}, ["v0"]),
    ({"tags": ("new",)}, ["v0"]),
    ({"tags": []}, ["v1", "v0"]),
    ({"tags": ["none"]}, []),
    ({"seen": [{"n": 1}]}, ["v1"]),
    ({"tags": "eu"}, []),
    ({"user.id": 7, "tags": ["new"]}, ["v0"]),
    ({"user.id.deeper": 7}, []),
    ({".": 7}, []),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS, ids=repr)
async def test_filters_of_both_sql_savers_find_what_they_found_there(saver, wanted, expected):
    first = {"user": {"id": 7, "name": "Al"}, "tags": ["eu", "new"]}
    second = {"user": {"id": 8, "name": "Bo", "address": {"city": "Oslo"}}}
    second |= {"tags": ["eu"], "seen": [{"n": 1, "m": 2}]}
    await put(saver, "v0", None, first)
    await put(saver, "v1", at(checkpoint_id="v0"), second)
    assert await ids(saver, at(), filter=wanted) == expected
    assert await ids(saver, None, filter=wanted, limit=5) == expected


@pytest.mark.parametrize("key", [7, None, ("a",)], ids=repr)
async def test_a_filter_whose_key_is_no_text_is_refused(saver, key):
    with pytest.raises(InvalidArgumentError, match="a filter's key must be a str"):
        await ids(saver, at(), filter={key: 1})


WRONG_THREADS = [None, "", True, 1.5, b"t", ["t"], {}]


@pytest.mark.parametrize("wrong", WRONG_THREADS, ids=repr)
async def test_a_config_without_a_thread_is_refused_by_every_method(saver, wrong):
    await walk(saver, "v0", thread_id=str(wrong) or "None")
    config = {"configurable": {"thread_id": wrong, "checkpoint_ns": "", "checkpoint_id": "v0"}}
    calls = [
        lambda: put(saver, "v1", config),
        lambda: saver.aput_writes(config, [("c", 1)], "task"),
        lambda: saver.aget_tuple(config),
        lambda: ids(saver, config),
        lambda: saver.adelete_thread(wrong),
        lambda: saver.acopy_thread(wrong, "copy"),
        lambda: saver.acopy_thread("None", wrong),
        lambda: saver.aprune([wrong], strategy="delete"),
        lambda: saver.aget_delta_channel_history(config=config, channels=["c"]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="thread_id must be a non-empty str"):
            await call()
    assert await ids(saver, None) == ["v0"]


@pytest.mark.parametrize("config", [{"configurable": {}}, {"tags": []}], ids=repr)
async def test_a_config_that_names_no_thread_is_refused(saver, config):
    with pytest.raises(InvalidArgumentError, match="thread_id"):
        await saver.aget_tuple(config)
    with pytest.raises(InvalidArgumentError, match="thread_id"):
        await ids(saver, config)


@pytest.mark.parametrize("checkpoint_ns", ["", "sub"])
async def test_a_parent_that_is_not_there_is_named(saver, checkpoint_ns):
    unknown = at("t", checkpoint_ns, "no-such")
    with pytest.raises(ConflictError, match=r"'no-such'.*parent.*none at all") as told:
        await put(saver, "v1", unknown)
    assert "gone" not in str(told.value)
    await walk(saver, "v0", checkpoint_ns=checkpoint_ns)
    with pytest.raises(ConflictError, match=r"'no-such'.*parent.*newest one is 'v0'") as told:
        await put(saver, "v1", unknown)
    assert "thread 't'" in str(told.value)
    assert told.value.head_id == "v0"
    assert await ids(saver, at(checkpoint_ns=checkpoint_ns)) == ["v0"]


async def test_a_filter_is_never_part_of_a_statement(saver):
    await walk(saver, "v0", "v1")
    for hostile in ("' OR 1=1 --", "source' = 'loop' OR 'a' = 'a", "'; DROP TABLE locus_threads;"):
        assert await ids(saver, at(), filter={hostile: "loop"}) == []
        assert await ids(saver, at(), filter={"source": hostile}) == []
        assert await ids(saver, at(hostile)) == []
        assert await ids(saver, at("t", hostile)) == []
    assert await ids(saver, at()) == ["v1", "v0"]


async def test_a_list_without_a_config_is_of_all_threads(saver):
    for thread_id in ("b", "a"):
        await walk(saver, "v0", "v1", thread_id=thread_id)
    await walk(saver, "w0", thread_id="a", checkpoint_ns="sub")
    found = [
        (it.config["configurable"]["thread_id"], it.checkpoint["id"])
        for it in await listed(saver, None)
    ]
    assert found == [("a", "w0"), ("a", "v1"), ("a", "v0"), ("b", "v1"), ("b", "v0")]
    assert await ids(saver, None, limit=3) == ["w0", "v1", "v0"]
    assert [it async for it in saver.alist({}, limit=1)] == await listed(saver, None, limit=1)
    assert await ids(saver, None, filter={"step": 1}) == ["v1", "v1"]


async def test_a_list_of_all_threads_is_newest_first(saver):
    config = await walk(saver, "z0", thread_id="z")
    for name in ("a", "m"):
        tick()
        await walk(saver, f"{name}0", thread_id=name, metadata={"kind": name})
    tick()
    await put(saver, "z1", config)
    tick()
    await walk(saver, "s0", thread_id="a", checkpoint_ns="sub", metadata={"kind": "a"})
    everything = ["s0", "z1", "m0", "a0", "z0"]
    assert await ids(saver, None) == everything
    for limit in range(6):
        assert await ids(saver, None, limit=limit) == everything[:limit]
    assert await ids(saver, None, filter={"kind": "a"}) == ["s0", "a0"]
    assert await ids(saver, None, filter={"kind": "a"}, limit=1) == ["s0"]
    assert await ids(saver, None, before=at("z", checkpoint_id="z1"), limit=3) == ["s0", "m0", "a0"]
    await saver.saver.backend.remove("z", ["z1"])
    assert await ids(saver, None, limit=3) == ["s0", "m0", "a0"]


@pytest.mark.parametrize(
    "apart", first_of(timedelta(milliseconds=20), timedelta(minutes=1)), ids=str
)
async def test_a_short_list_of_all_threads_reads_few_of_them(saver, monkeypatch, apart):
    for number in range(40):
        await walk(saver, "v0", "v1", thread_id=f"t{number:02}")
        await date_back(saver.saver.backend, f"t{number:02}", (40 - number) * apart)
    asked = []
    history = saver.saver.backend.history

    async def counted(thread_id, **options):
        asked.append(thread_id)
        return await history(thread_id, **options)

    monkeypatch.setattr(saver.saver.backend, "history", counted)
    found = await listed(saver, None, limit=3)
    assert [it.config["configurable"]["thread_id"] for it in found] == ["t39", "t39", "t38"]
    assert len(asked) <= 4
    assert await ids(saver, None, limit=80) == ["v1", "v0"] * 40


async def test_a_thread_that_moves_while_all_are_listed_is_listed_once(saver, monkeypatch):
    for number in range(5):
        await walk(saver, "v0", thread_id=f"t{number}")
        tick()
    backend = saver.saver.backend
    listing = backend.recent

    async def by_two(limit=2, **options):
        page = await listing(2, **options)
        if page:
            await put(saver, "v1", at(page[-1].thread_id, checkpoint_id="v0"), {"step": 1})
        return page

    monkeypatch.setattr(backend, "recent", by_two)
    found = [it.config["configurable"] for it in await listed(saver, None)]
    assert {it["thread_id"] for it in found} == {f"t{number}" for number in range(5)}
    assert len({(it["thread_id"], it["checkpoint_id"]) for it in found}) == len(found)


async def test_a_list_is_bounded_in_a_namespace_and_across_them(saver):
    await walk(saver, "a", "c", "e")
    await walk(saver, "b", "d", checkpoint_ns="sub")
    everywhere = {"configurable": {"thread_id": "t"}}
    assert await ids(saver, at()) == ["e", "c", "a"]
    assert await ids(saver, at(checkpoint_ns="sub")) == ["d", "b"]
    assert await ids(saver, everywhere) == ["d", "b", "e", "c", "a"]
    assert await ids(saver, everywhere, limit=4) == ["d", "b", "e", "c"]
    assert await ids(saver, everywhere, limit=0) == []
    assert await ids(saver, at(), limit=0) == []
    assert await ids(saver, at(), limit=2) == ["e", "c"]
    assert await ids(saver, at(), before=at(checkpoint_id="e")) == ["c", "a"]
    assert await ids(saver, at(), before=at(checkpoint_id="e"), limit=1) == ["c"]
    assert await ids(saver, everywhere, before=at(checkpoint_id="c")) == ["b", "a"]
    assert await ids(saver, at(), filter={"step": 1}, limit=1) == ["c"]
    assert await ids(saver, at(checkpoint_id="c")) == ["c"]
    assert await ids(saver, at("unknown")) == []


async def test_a_list_is_by_the_servers_order_whatever_the_ids_are(saver):
    await walk(saver, "z", "m", "a")
    assert await ids(saver, at()) == ["a", "m", "z"]
    assert await ids(saver, at(), before=at(checkpoint_id="m")) == ["z"]
    assert (await saver.aget_tuple(at())).checkpoint["id"] == "a"


async def test_a_list_of_many_pages_is_complete(saver):
    names = [f"v{n:03}" for n in range(260)]
    await walk(saver, *names)
    assert await ids(saver, at()) == names[::-1]
    assert await ids(saver, at(), filter={"step": 3}) == ["v003"]
    found = await listed(saver, at(), limit=252)
    assert [it.checkpoint["channel_values"]["n"] for it in found] == list(range(259, 7, -1))
    assert await asyncio.to_thread(lambda: len(list(saver.list(at())))) == 260
    saver._portals.close()


async def test_a_checkpoint_may_be_read_while_a_list_is_open(saver):
    await walk(saver, "v0", "v1")
    async for it in saver.alist(at()):
        assert (await saver.aget_tuple(it.config)).checkpoint == it.checkpoint
        await saver.aput_writes(it.config, [("c", 1)], "task")

    def sync():
        for it in saver.list(at()):
            assert saver.get_tuple(it.config).checkpoint == it.checkpoint

    await asyncio.to_thread(sync)
    saver._portals.close()


async def test_names_may_be_numbers_and_of_any_length(saver):
    number, uuid = 7, UUID(int=7)
    for thread_id in (number, uuid):
        config = await put(saver, "v", at(thread_id), c=1)
        await saver.aput_writes(config, [("c", 2)], "task")
        assert (await saver.aget_tuple(at(thread_id))).pending_writes == [("task", "c", 2)]
        assert await ids(saver, at(str(thread_id))) == ["v"]
    await saver.acopy_thread(number, 8)
    await saver.aprune([number])
    await saver.adelete_thread(number)
    await saver.adelete_thread(uuid)
    assert await saver.aget_tuple(at(number)) is None
    assert await ids(saver, None) == ["v"]


async def test_namespaces_may_be_of_any_length(saver):
    long = "node:0f6c|" * 30
    named = [
        "",
        "sub",
        long[:254],
        long[:255],
        long[:256],
        long,
        long * 7,
        long * 7 + "é",
        "é" * 2000,
    ]
    for n, namespace in enumerate(named):
        config = await walk(saver, "v0", "v1", checkpoint_ns=namespace, metadata={"run_id": "r"})
        await saver.aput_writes(config, [("c", n)], "task")
    for n, namespace in enumerate(named):
        for config in (at("t", namespace), at("t", namespace, "v1")):
            found = await saver.aget_tuple(config)
            assert found.config["configurable"]["checkpoint_ns"] == namespace
            assert found.parent_config["configurable"]["checkpoint_ns"] == namespace
            assert found.pending_writes == [("task", "c", n)]
        assert await ids(saver, at("t", namespace), before=at("t", namespace, "v1")) == ["v0"]
    assert sorted(await saver.saver.namespaces("t")) == sorted(named)
    found = await listed(saver, {"configurable": {"thread_id": "t"}})
    assert {it.config["configurable"]["checkpoint_ns"] for it in found} == set(named)
    await saver.acopy_thread("t", "u")
    await saver.aprune(["t"])
    assert await ids(saver, {"configurable": {"thread_id": "t"}}) == ["v1"] * len(named)
    assert len(await ids(saver, {"configurable": {"thread_id": "u"}})) == 2 * len(named)
    await saver.adelete_for_runs(["r"])
    assert await ids(saver, None) == []


# --- threads, sync and async


async def test_runs_are_deleted_wherever_they_wrote(saver, ask):
    for thread_id in ("t", "u"):
        config = await walk(saver, "v0", thread_id=thread_id, metadata={"run_id": "keep"})
        last = await put(saver, "v1", config, {"run_id": "gone"})
        await saver.aput_writes(last, [("c", 1)], "task")
    await walk(saver, "w0", checkpoint_ns="sub", metadata={"run_id": "gone"})
    await ask("delete_for_runs", ["gone", "unknown"])
    assert await ids(saver, None) == ["v0", "v0"]
    assert await saver.saver.get_writes(thread_id="t", checkpoint_id="v1") == []
    await ask("delete_for_runs", [])
    assert len(await ids(saver, None)) == 2


async def test_a_thread_is_copied_whole(saver, ask):
    config = await walk(saver, "v0", "v1")
    await saver.aput_writes(config, [("c", (1, 2))], "task", "path")
    await walk(saver, "w0", checkpoint_ns="sub")
    await ask("copy_thread", "t", "u")
    everything = [await listed(saver, {"configurable": {"thread_id": it}}) for it in ("t", "u")]
    for one, other in zip(*everything, strict=True):
        for name in ("checkpoint", "metadata", "pending_writes"):
            assert getattr(one, name) == getattr(other, name)
    with pytest.raises(ConflictError):
        await ask("copy_thread", "t", "u")
    with pytest.raises(NotFoundError):
        await ask("copy_thread", "unknown", "w")
    await put(saver, "v2", at("u", checkpoint_id="v1"))
    assert await ids(saver, at()) == ["v1", "v0"]


async def test_threads_are_pruned_and_deleted(saver, ask):
    for thread_id in ("t", "u"):
        config = await walk(saver, "v0", "v1", "v2", thread_id=thread_id)
        await saver.aput_writes(config, [("c", 1)], "task")
        await walk(saver, "w0", "w1", thread_id=thread_id, checkpoint_ns="sub")
    await ask("prune", ["t", "unknown"])
    assert await ids(saver, {"configurable": {"thread_id": "t"}}) == ["w1", "v2"]
    assert len((await saver.aget_tuple(at())).pending_writes) == 1
    assert len(await ids(saver, {"configurable": {"thread_id": "u"}})) == 5
    with pytest.raises(InvalidArgumentError, match="keep_all"):
        await ask("prune", ["u"], strategy="keep_all")
    with pytest.raises(InvalidArgumentError, match="thread_ids must be a list, not str"):
        await ask("prune", "u", strategy="delete")
    await ask("prune", ["u"], strategy="delete")
    assert await ids(saver, at("u")) == []
    await ask("delete_thread", "t")
    await ask("delete_thread", "t")
    assert await listed(saver, None) == []


async def delta(saver):
    """Checkpoints of a channel that is whole in v1 only, with writes on each; their last config."""
    config = await put(saver, "v0", at(), d=["nothing"])
    config = await put(saver, "v1", config, d=["seed"], other=1)
    for n, name in enumerate(("v2", "v3", "v4"), start=1):
        await saver.aput_writes(config, [("d", (n,)), ("other", n)], f"task {n}", f"~{9 - n}")
        await saver.aput_writes(config, [("d", -n)], f"a task {n}", f"~{9 - n}")
        metadata = {"source": "loop", "step": n, "counters_since_delta_snapshot": {"d": (n, n)}}
        made = checkpoint(name, other=n) | {"channel_versions": {"d": n + 1, "other": 1}}
        config = await saver.aput(config, made, metadata, {"d": n + 1})
    return config


async def test_the_history_of_a_delta_channel_is_the_default_ones(saver, ask):
    config = await delta(saver)
    await put(saver, "fork", at(checkpoint_id="v2"), {"source": "fork"}, other=1)
    for asked in (config, at(), at(checkpoint_id="v3"), at(checkpoint_id="v1"), at("unknown")):
        for channels in (["d"], ["d", "other", "none"], []):
            found = await ask("get_delta_channel_history", config=asked, channels=channels)
            expected = await BaseCheckpointSaver.aget_delta_channel_history(
                saver, config=asked, channels=channels
            )
            assert found == expected
    found = await ask("get_delta_channel_history", config=config, channels=["d"])
    assert found["d"]["seed"] == ["seed"]
    assert [it[2] for it in found["d"]["writes"]] == [-1, (1,), -2, (2,), -3, (3,)]


async def test_what_a_delta_channel_is_rebuilt_from_stays(saver, ask):
    config = await delta(saver)
    before = await saver.aget_delta_channel_history(config=config, channels=["d"])
    await put(saver, "side", at(checkpoint_id="v0"), {"source": "fork"}, other=1)
    await put(saver, "v5", at(checkpoint_id="v4"), {"source": "fork", "run_id": "r"}, other=1)
    await ask("delete_for_runs", ["r"])
    await saver.acopy_thread("t", "u")
    await ask("prune", ["u"])
    assert await ids(saver, at("u")) == ["v4", "v3", "v2", "v1"]
    for thread_id in ("t", "u"):
        found = await saver.aget_delta_channel_history(config=at(thread_id), channels=["d"])
        assert found == before


# --- ids


class AnyId(str):
    """A text that equals every text, as LangGraph's tests have it."""

    __slots__ = ()

    def __eq__(self, other):
        return type(other) is str

    __hash__ = str.__hash__


async def test_loaded_ids_are_plain_text(saver, ask):
    await walk(saver, "v0", "v1")
    found = await ask("get_tuple", at())
    for it in (found, (await listed(saver, at()))[0]):
        assert it.config == at(checkpoint_id=AnyId("any"))
        assert it.parent_config == at(checkpoint_id=AnyId("any"))
        assert type(it.checkpoint["id"]) is str
        assert yaml.safe_load(yaml.safe_dump(it.config)) == it.config


@pytest.mark.parametrize("kind", ["put", "put_writes"])
async def test_a_load_waits_for_what_a_run_that_was_left_still_saves(saver, monkeypatch, kind):
    await put(saver, "v1")
    left, may_end, begun = await saver.aget_tuple(at()), asyncio.Event(), asyncio.Event()
    save = getattr(saver.saver, kind)

    async def slow(**options):
        begun.set()
        await may_end.wait()
        return await save(**options)

    monkeypatch.setattr(saver.saver, kind, slow)
    save_of_it = (
        put(saver, "v2", left.config)
        if kind == "put"
        else saver.aput_writes(left.config, [("a", 1)], "task")
    )
    saving = asyncio.create_task(save_of_it)
    await begun.wait()
    load = asyncio.create_task(saver.aget_tuple(at()))
    assert await saver.aget_tuple(at("another")) is None
    assert await saver.aget_tuple(at(checkpoint_ns="sub")) is None
    assert not load.done()
    may_end.set()
    found = await load
    assert found.checkpoint["id"] == ("v2" if kind == "put" else "v1")
    assert found.pending_writes == ([] if kind == "put" else [("task", "a", 1)])
    await saver.aput_writes(found.config, [("a", 1)], "task")  # would be told of another run
    await saving


async def test_two_loads_of_one_checkpoint_are_told_apart(saver):
    await walk(saver, "v0", "v1")
    first = (await saver.aget_tuple(at())).config
    second = (await saver.aget_tuple(at())).config
    assert first == second
    await put(saver, "v2", second)
    rewound = (await saver.aget_tuple(at(checkpoint_id="v1"))).config
    with pytest.raises(ConflictError):
        await put(saver, "v3", first)
    await put(saver, "v4", rewound)
    assert await ids(saver, at()) == ["v4", "v2", "v1", "v0"]


async def test_a_copied_config_keeps_how_it_was_loaded(saver):
    await walk(saver, "v0", "v1")
    found = await saver.aget_tuple(at(checkpoint_id="v0"))
    await put(saver, "v2", copy.deepcopy(found.config))
    typed = json.loads(json.dumps(found.config))
    with pytest.raises(ConflictError):
        await put(saver, "v3", typed)


async def test_only_ids_that_somebody_holds_are_remembered():
    async with LangGraphSaver(MemoryBackend()) as saver:
        await walk(saver, "v0", "v1")
        held = (await saver.aget_tuple(at(checkpoint_id="v0"))).config
        for _ in range(5_000):
            saver._given.give("some id", None)
        assert len(saver._given) <= FIRST_SWEEP + 1
        await put(saver, "v2", held)
        ids = [saver._given.give("some id", None) for _ in range(MAX_ENTRIES + 2 * FIRST_SWEEP)]
        assert len(saver._given) <= MAX_ENTRIES + FIRST_SWEEP
        assert saver._given.find(ids[-1]) is not None
        assert saver._given.find(ids[0]) is None


# --- sync, threads, loops, connections


def test_sync_methods_may_be_called_from_many_threads(opened):
    with LangGraphSaver(opened()) as saver, ThreadPoolExecutor(8) as pool:
        saver.setup()

        def work(n):
            config = at(f"thread {n}")
            for step in range(5):
                config = saver.put(
                    config, checkpoint(f"v{step}", n=n), {"source": "loop", "step": step}, {"n": 1}
                )
                saver.put_writes(config, [("c", step)], "task")
            assert [it.pending_writes for it in saver.list(at(f"thread {n}"))] == [
                [("task", "c", step)] for step in (4, 3, 2, 1, 0)
            ]
            return saver.get_tuple(at(f"thread {n}")).checkpoint["channel_values"]["n"]

        assert list(pool.map(work, range(16))) == list(range(16))
        saver.delete_thread("thread 0")
        assert saver.get_tuple(at("thread 0")) is None


async def test_sync_methods_work_in_a_running_loop(saver):
    await put(saver, "v0")
    saver.put(at(checkpoint_id="v0"), checkpoint("v1"), {"source": "loop"}, {})
    saver.put_writes(at(checkpoint_id="v1"), [("c", 1)], "task")
    assert saver.get_tuple(at()).pending_writes == [("task", "c", 1)]
    assert [it.checkpoint["id"] for it in saver.list(at())] == ["v1", "v0"]
    assert saver.get_delta_channel_history(config=at(), channels=["c"]) == {"c": {"writes": []}}
    saver.copy_thread("t", "u")
    saver.prune(["u"])
    saver.delete_for_runs(["r"])
    saver.delete_thread("t")
    assert await ids(saver, None) == ["v1"]
    saver.close()
    assert await ids(saver, None) == ["v1"]


async def test_setup_may_be_awaited_or_not(saver):
    saver.setup()
    await saver.setup()
    await saver.asetup()


def test_setup_without_a_loop_leaves_nothing_to_await(opened):
    with LangGraphSaver(opened()) as saver:
        saver.setup()
        gc.collect()


def test_a_saver_serves_many_loops_one_after_another(opened):
    saver = LangGraphSaver(opened())
    names = [f"v{n}" for n in range(3)]
    for n, name in enumerate(names):
        config = at(checkpoint_id=names[n - 1]) if n else at()
        asyncio.run(put(saver, name, config, n=n))
        assert saver.get_tuple(at()).checkpoint["id"] == name
    assert asyncio.run(ids(saver, at())) == names[::-1]
    saver.close()


def test_a_saver_serves_many_loops_at_once(opened):
    async def work(n):
        config = at(f"thread {n}")
        for step in range(5):
            config = await put(saver, f"v{step}", config, step=step)
        return await ids(saver, at(f"thread {n}"))

    with LangGraphSaver(opened()) as saver, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: asyncio.run(work(n)), range(8)))
    assert found == [["v4", "v3", "v2", "v1", "v0"]] * 8


async def test_a_closed_saver_may_be_used_again(opened):
    async with LangGraphSaver(opened()) as saver:
        await put(saver, "v0")
    await put(saver, "v1", at(checkpoint_id="v0"))
    await saver.aclose()
    await saver.aclose()
    assert await ids(saver, at()) == ["v1", "v0"]
    await saver.aclose()


def test_a_closed_saver_may_be_used_again_by_its_sync_methods(opened):
    with LangGraphSaver(opened()) as saver:
        saver.put(at(), checkpoint("v0"), {"source": "loop"}, {})
    assert saver.get_tuple(at()).checkpoint["id"] == "v0"
    saver.close()
    saver.close()


async def test_setting_up_is_harmless(saver, ask):
    await ask("setup")
    await put(saver, "v")
    await ask("setup")
    assert await ids(saver, at()) == ["v"]


async def test_64_tasks_use_the_pools_connections(migrated_database):
    async def work(n):
        config = await put(saver, "v0", at(f"{n}"), n=n)
        await saver.aput_writes(config, [("n", n)], "task")
        found = await saver.aget_tuple(at(f"{n}"))
        return found.checkpoint["channel_values"]["n"], found.pending_writes

    async with LangGraphSaver(PostgreSQLBackend(migrated_database, pool_size=8)) as saver:
        done = await asyncio.gather(*(work(n) for n in range(64)))
        assert done == [(n, [("task", "n", n)]) for n in range(64)]
        counting = await asyncpg.connect(migrated_database)
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        connections = await counting.fetchval(query) - 1
        await counting.close()
    assert connections > 1


async def test_a_thread_that_is_locked_holds_up_no_other(migrated_database):
    async with LangGraphSaver(PostgreSQLBackend(migrated_database, pool_size=4)) as saver:
        await put(saver, "v0", at("locked"))
        other = await asyncpg.connect(migrated_database)
        transaction = other.transaction()
        await transaction.start()
        await other.fetch("SELECT * FROM locus_lines FOR UPDATE")
        waiting = asyncio.create_task(put(saver, "v1", at("locked", checkpoint_id="v0")))
        with anyio.fail_after(30):
            for n in range(8):
                await put(saver, "v0", at(f"{n}"))
                assert await ids(saver, at(f"{n}")) == ["v0"]
        assert not waiting.done()
        await transaction.rollback()
        await other.close()
        await waiting
        assert await ids(saver, at("locked")) == ["v1", "v0"]


# --- the other ways to a thread


async def test_an_agents_thread_is_refused_and_seen_by_the_plain_saver(saver):
    backend = saver.saver.backend
    agent = StorageBackendAdapter(backend)
    await agent.save(AgentState(messages=(Message.user("hello"),)), "t", "v")
    for refused in (saver.aget_tuple(at()), listed(saver, at())):
        with pytest.raises(SchemaError, match="'t'"):
            await refused
    assert await listed(saver, None) == []
    found = await CheckpointSaver(backend).get(thread_id="t")
    assert found["checkpoint_id"] == "v"
    assert "hello" in str(found["checkpoint"]["messages"])


async def test_a_thread_is_a_graphs_or_an_agents(saver):
    backend = saver.saver.backend
    agent = StorageBackendAdapter(backend, state_type=dict)
    await agent.save({"n": 1}, "agent", "a")
    with pytest.raises(SchemaError, match=r"'agent' holds an agent's state .* give the graph"):
        await put(saver, "v0", at("agent"), c=1)
    await put(saver, "v0", c=1)
    await agent.save({"channel_versions": {"a": 1}}, "own")
    await agent.save({"n": 1}, "own")  # a name of one's own, and no checkpoint
    with pytest.raises(SchemaError, match=r"'t' holds LangGraph checkpoints; give the agent"):
        await agent.save({"n": 1}, "t")
    loaded = await agent.load("t")
    with pytest.raises(SchemaError, match="'t' holds LangGraph checkpoints"):
        await agent.save({"n": 1} | {"metadata": loaded.get("metadata", {})}, "t")
    assert (await ids(saver, at()), await agent.list_checkpoints("agent")) == (["v0"], ["a"])
    await agent.save(loaded | {"channel_values": {"c": 2}}, "t", "edited")
    assert (await saver.aget_tuple(at())).checkpoint["channel_values"] == {"c": 2}
    assert await agent.delete("t")
    await agent.save({"n": 1}, "t", "a")
    assert await agent.list_checkpoints("t") == ["a"]


async def test_a_thread_that_another_writer_deleted_begins_as_an_agents(saver, opened):
    await put(saver, "v0", c=1)
    other = opened()
    await other.delete("t")
    await StorageBackendAdapter(saver.saver.backend).save({"n": 1}, "t", "a")
    assert (await other.load("t")) == {"n": 1}
    await other.close()


async def test_a_graphs_thread_is_seen_by_a_checkpointer_and_found(saver):
    config = await put(saver, "v0", None, {"user_id": "u"}, messages=["an avocado"])
    await put(saver, "v1", config, messages=["an avocado", "a banana"])
    plain = StorageBackendAdapter(saver.saver.backend, state_type=dict)
    assert await plain.list_checkpoints("t") == ["v1", "v0"]
    state = await plain.load("t")
    assert state["channel_values"] == {"messages": ["an avocado", "a banana"]}
    (found,) = await plain.search("avocado banana")
    assert found["thread_id"] == "t"
    assert [it["checkpoint_id"] for it in await plain.query_by_metadata("user_id", "u")] == ["v0"]
    assert await plain.list_threads() == ["t"]


# --- versions of channels


def test_versions_of_channels_go_on_from_those_that_are_there():
    saver = LangGraphSaver(MemoryBackend())
    version, seen = None, []
    for _ in range(12):
        version = saver.get_next_version(version, None)
        seen.append(version)
    assert seen == sorted(set(seen))
    theirs = f"{7:032}.0.8134"
    assert saver.get_next_version(theirs, None) > theirs
    assert int(saver.get_next_version(theirs, None).partition(".")[0]) == 8
    assert saver.get_next_version(3, None) == 4
    assert saver.get_next_version(3.0, None) == 4


async def test_a_clone_shares_its_origins_storage(saver):
    clone = saver.with_allowlist([("a.module", "AClass")])
    assert clone is not saver
    assert clone.saver is saver.saver
    config = await put(clone, "v0", c=(1,))
    await put(saver, "v1", config, c=(1, 2))
    assert await ids(clone, at()) == ["v1", "v0"]

    def sync():
        assert clone.get_tuple(at()).checkpoint == saver.get_tuple(at()).checkpoint
        clone._portals.close()

    await asyncio.to_thread(sync)
