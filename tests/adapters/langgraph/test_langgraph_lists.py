"""Lists over many threads and namespaces: the backend's own order against a merge of lines."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from test_langgraph import direct_storage
from tiers import first_of

from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import ConflictError, SchemaError
from locus_store.saver import CheckpointSaver
from locus_store.types import PendingWrite
from locus_store.values.filters import holds
from locus_store.versions.sizes import INTERRUPT, StatusesWanted

if TESTS_RUN:
    from locus_store.adapters.langgraph import LangGraphSaver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig

pytestmark = pytest.mark.anyio

USERS = ("u0", "u1", ["u1", "u2"], {"id": "u1"}, 1, True, None)


def config(thread_id: str, namespace: str | None = "", **more: Any) -> RunnableConfig:
    """Return the config of a namespace, or of all."""
    where = {"thread_id": thread_id} | ({} if namespace is None else {"checkpoint_ns": namespace})
    return {"configurable": {**where, **more}}


def point(name: str) -> Any:
    """Return a checkpoint."""
    return {
        "v": 4,
        "id": name,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"said": [name]},
        "channel_versions": {"said": f"{1:032}"},
        "versions_seen": {},
        "updated_channels": None,
    }


async def grow(saver: LangGraphSaver) -> None:
    """Save 7 threads of three namespaces with two checkpoints each, and a write on each."""
    for step in range(2):
        for thread, user in enumerate(USERS):
            for namespace in ("", "a", "b"):
                parent = {"checkpoint_id": f"{thread}{namespace}0"} if step else {}
                where = config(f"t{thread}", namespace, **parent)
                told = {"source": "loop", "step": step, "user": user}
                made = await saver.aput(
                    where, point(f"{thread}{namespace}{step}"), told, {"said": f"{1:032}"}
                )
                await saver.aput_writes(made, [("said", ["w"])], "task")


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[LangGraphSaver]:
    async with LangGraphSaver.from_url(f"sqlite:///{tmp_path / 'lists.db'}") as made:
        await grow(made)
        yield made


@pytest.fixture(
    params=["sqlite", *first_of("redis", "memory", "file", "oci", "opensearch", "http", "sharded")]
)
async def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LangGraphSaver]:
    async with LangGraphSaver(direct_storage(request, tmp_path)()) as made:
        await grow(made)
        yield made


async def shown(saver: LangGraphSaver, where: Any, **options: Any) -> list[Any]:
    """Return what a list gives, without times."""
    return [
        (it.config, it.parent_config, it.metadata, it.checkpoint["id"], it.pending_writes)
        async for it in saver.alist(where, **options)
    ]


LISTS: list[tuple[Any, dict[str, Any]]] = [
    (None, {"limit": 5}),
    (None, {"limit": 100}),
    (None, {"filter": {"user": "u1"}}),
    (None, {"filter": {"user": "u1"}, "limit": 2}),
    (None, {"filter": {"user": ["u1"]}}),
    (None, {"filter": {"user.id": "u1"}}),
    (None, {"filter": {"user": 1.0}}),
    (None, {"filter": {"user": True}}),
    (None, {"filter": {"user": None, "step": 1}}),
    (None, {"filter": {"user": "nobody"}}),
    (None, {"filter": {"step": 0}, "before": config("t1", "", checkpoint_id="11")}),
    (config("t1", None), {}),
    (config("t1", None), {"limit": 1}),
    (config("t1", None), {"before": config("t1", "", checkpoint_id="11")}),
    (config("t1", None), {"before": config("t1", "a", checkpoint_id="1a1"), "limit": 2}),
    (config("t1", None, checkpoint_id="1a0"), {}),
    (config("t1", "b"), {"filter": {"step": 0}}),
    (config("missing", None), {"limit": 3}),
]


def select(whole: list[Any], where: Any, **options: Any) -> list[Any]:
    """Return what a list gives, of a list of everything."""
    wanted = where["configurable"] if where else {}
    before = options.get("before", {"configurable": {"checkpoint_id": "~"}})["configurable"]
    found = [
        it
        for it in whole
        if it[0]["configurable"].items() >= wanted.items()
        and holds(it[2], options.get("filter", {}))
        and it[3] < before["checkpoint_id"]
    ]
    return found[: options.get("limit")]


async def merge_lines(saver: LangGraphSaver) -> list[Any]:
    """Return the lists of all namespaces as one, in the order of the saves."""
    found = list[tuple[Any, Any]]()
    for thread in range(len(USERS)):
        for namespace in ("", "a", "b"):
            listed = await shown(saver, config(f"t{thread}", namespace))
            versions = await saver.backend.history(f"t{thread}", namespace=namespace)
            places = [(it.created_at, it.mark.line, it.mark.sequence) for it in versions]
            found += zip(places, listed, strict=True)
    return [it for _, it in sorted(found, key=lambda it: it[0], reverse=True)]


async def test_a_backends_own_order_is_that_of_merged_lines(anywhere: LangGraphSaver) -> None:
    saver = anywhere
    found = [await shown(saver, where, **options) for where, options in LISTS]
    whole = await merge_lines(saver)
    assert await shown(saver, None) == whole
    assert found == [select(whole, where, **options) for where, options in LISTS]
    assert [len(it) for it in found[:4]] == [5, 42, 6, 2]


async def test_a_list_asks_once_and_not_for_each_thread_and_namespace(
    anywhere: LangGraphSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = anywhere
    calls: Counter[str] = Counter()
    for name in ("newest", "contents", "history", "namespaces", "records", "writes_of", "recent"):

        def counted(*args: Any, _name: str = name, **kwargs: Any) -> Any:
            calls[_name] += 1
            return getattr(type(saver.saver.backend), _name)(saver.saver.backend, *args, **kwargs)

        monkeypatch.setattr(saver.saver.backend, name, counted)
    for where, options in LISTS[:5]:
        assert await shown(saver, where, **options)
    shards = len(getattr(saver.saver.backend, "shards", [0]))
    assert calls.keys() == {"newest", "contents"}
    assert (calls["newest"], 5 <= calls["contents"] <= 5 * shards) == (5, True)


async def test_a_thread_of_many_namespaces_is_deleted_by_few_statements(
    saver: LangGraphSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy import Connection

    statements: list[str] = []
    execute = Connection.execute

    def counted(self: Connection, statement: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(str(statement))
        return execute(self, statement, *args, **kwargs)

    for at in range(30):
        await saver.aput(config("t0", f"n{at}"), point("1"), {"step": 0}, {"said": f"{1:032}"})
    monkeypatch.setattr(Connection, "execute", counted)
    await saver.adelete_thread("t0")
    assert len([it for it in statements if it.startswith("DELETE")]) < 10
    assert await shown(saver, config("t0", None)) == []


async def test_late_writes_of_a_deleted_thread_are_refused(saver: LangGraphSaver) -> None:
    seen = await saver.aget_tuple(config("t0"))
    assert seen is not None
    other = CheckpointSaver(saver.saver.backend)
    await other.delete_thread("t0")
    for where in (seen.config, config("t0", "a", checkpoint_id="0a1")):
        with pytest.raises(ConflictError, match="gone"):
            await saver.aput_writes(where, [("said", ["secret"])], "late")
    assert "t0" not in await saver.saver.backend.scan()  # type: ignore[attr-defined]


async def test_nothing_of_a_run_brings_a_deleted_thread_back(saver: LangGraphSaver) -> None:
    seen = await saver.aget_tuple(config("t0"))
    assert seen is not None
    await CheckpointSaver(saver.saver.backend).delete_thread("t0")
    later = config("t0", checkpoint_id="0b1")  # overtakes its checkpoint
    for write in (
        lambda: saver.aput_writes(later, [("said", ["secret"])], "late"),
        lambda: saver.aput(seen.config, point("0b1"), {"step": 9}, {"said": "9"}),
        lambda: saver.aput_writes(later, [("said", ["secret"])], "late"),
        lambda: saver.aput(config("t0", "sub:1"), point("1"), {"step": -1}, {"said": "1"}),
    ):
        with pytest.raises(ConflictError):
            await write()
    assert "t0" not in await saver.saver.backend.scan()  # type: ignore[attr-defined]
    assert await saver.aget_tuple(config("t0")) is None  # a new run begins
    await saver.aput_writes(later, [("said", ["new"])], "task")
    await saver.aput(config("t0"), point("0b1"), {"step": -1}, {"said": "1"})


async def test_writes_of_a_step_that_keep_last_removed_are_dropped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with LangGraphSaver.from_url(url, keep_last=1) as saver:
        where = config("t")
        for step in range(70):  # hidden versions are removed in batches
            where = await saver.aput(where, point(f"{step:03}"), {"step": step}, {"said": "1"})
        await saver.aput_writes(config("t", checkpoint_id="000"), [("said", ["w"])], "late")
        assert await saver.saver.get_writes(thread_id="t", checkpoint_id="000") == []


async def test_a_thread_of_nothing_but_writes_expires(tmp_path: Path) -> None:
    async with LangGraphSaver.from_url(f"sqlite:///{tmp_path / 'w.db'}", ttl_seconds=60) as saver:
        await saver.aput_writes(config("t", checkpoint_id="later"), [("said", ["w"])], "task")
        found = await saver.saver.backend.read_thread("t")  # type: ignore[attr-defined]
        assert found.expires_at is not None


async def test_a_filtered_list_is_whole_though_the_clock_went_back(
    saver: LangGraphSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = config("steps")
    for step in range(12):
        told = {"step": step, "score": 1.5}
        where = await saver.aput(where, point(f"{step:02}"), told, {"said": f"{step:032}"})
    with closing(sqlite3.connect(tmp_path / "lists.db")) as connection, connection:
        later = "UPDATE locus_checkpoints SET created_at = created_at + 600000000 "
        connection.execute(later + "WHERE checkpoint_id < '06'")
    for name in ("PAGE", "MOST_LISTED"):
        monkeypatch.setattr(f"locus_store.adapters.langgraph.listing.{name}", 4)
    for wanted in ({"score": 1.5}, {"step": 3}, None):
        found = [it async for it in saver.alist(config("steps"), filter=wanted)]
        assert len(found) == (1 if wanted == {"step": 3} else 12)
    assert len([it async for it in saver.alist(None)]) == 12 + 6 * len(USERS)


async def test_a_filter_with_half_a_character_finds_its_checkpoint(saver: LangGraphSaver) -> None:
    told = {"half": "\ud83d", "step": 1}
    await saver.aput(config("half"), point("1"), told, {"said": "1"})
    for wanted in ({"half": "\ud83d"}, {"half": "\ud83e"}):
        found = [it.metadata async for it in saver.alist(None, filter=wanted)]
        assert [it["half"] for it in found] == (["\ud83d"] if wanted["half"] == "\ud83d" else [])


async def test_any_number_of_threads_is_marked(saver: LangGraphSaver) -> None:
    backend: Any = saver.saver.backend
    writes = [PendingWrite("asks", 0, INTERRUPT, "json", b"1", "")]
    await backend.put_writes("t1", "1b1", writes, namespace="b")
    head = await backend.version("t0")
    await backend.put_writes("t0", head.checkpoint_id, writes)
    ids = [*(f"none{n}" for n in range(40_000)), "t0", "t1"]
    found = await backend.find_statuses(StatusesWanted(limit=5, thread_ids=ids))
    assert {it.thread_id: it.badges for it in found} == {"t0": ["interrupted"], "t1": []}


async def test_a_list_of_all_threads_has_those_of_graphs_only(anywhere: LangGraphSaver) -> None:
    graphs = {limit: await shown(anywhere, None, limit=limit) for limit in (1, 5, None)}
    agents = StorageBackendAdapter(anywhere.backend)
    for nth in range(6):
        await agents.save({"said": [nth]}, f"agent{nth}", metadata={"user": "u1"})
    for limit, checkpoints in graphs.items():
        assert await shown(anywhere, None, limit=limit) == checkpoints
    tagged = await shown(anywhere, None, filter={"user": "u1"}, limit=2)
    assert len(tagged) == 2
    assert [it.config["configurable"]["thread_id"] for it in anywhere.list(None, limit=1)]
    with pytest.raises(SchemaError, match="agent0"):
        await shown(anywhere, config("agent0"))
