"""One call of every public method of Oracle's backend, saver, store and log, on prepared data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import oracledb
from oracle_twin import watched
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from locus_store.runtime import holding
from locus_store.types import FOREVER, PendingWrite, VersionsWanted
from locus_store.types.items import NamespaceMatch, Put
from locus_store.types.tenants import Quota
from locus_store.types.thread_info import ThreadsWanted
from locus_store.types.turns import TurnStep
from locus_store.versions import PutWrites, segments
from locus_store.versions.sharding import Move, ShardLayout, is_routed
from locus_store.versions.sizes import StatusesWanted

if TYPE_CHECKING:
    from locus_store import OracleBackend, OracleCheckpointSaver, OracleMessageLog, OracleStore

NS = ("memory", "u")
WRITE = PendingWrite("task", 0, "channel", "json", b"1")
WANTED = ThreadsWanted(user_id="u", needle=None, offset=0, limit=3)
STATUSES = StatusesWanted(
    limit=2,
    pattern="t*",
    user_id="u",
    metadata=("k", 1),
    kind="agent",
    badge="conflict",
    since=FOREVER,
    until=FOREVER,
)
QUOTA = Quota(threads=100, bytes=10**9)
LAYOUT = ShardLayout(shards=1, former=1)
MOVE = Move(tenant="default", thread_id="t", target=1, number=7)


class Opened(NamedTuple):
    """The object that the calls are made on."""

    backend: OracleBackend
    saver: OracleCheckpointSaver
    store: OracleStore
    log: OracleMessageLog


Scenario = Callable[[Opened], Awaitable[Any]]


async def prepare(it: Opened) -> None:
    """Thread t with three versions, a namespace and pending writes; items with embeddings."""
    for n in range(1, 4):
        data = {"said": ["word"] * n, "n": n}
        await it.backend.save("t", data, checkpoint_id=f"v{n}", metadata={"k": n, "user_id": "u"})
    await it.backend.write_state("t", {"n": 1}, namespace="sub", checkpoint_id="s1")
    await it.backend.put_writes("t", "v3", [WRITE])
    await it.saver.put(thread_id="s", checkpoint_id="c1", checkpoint_data={"n": 1},
                       metadata={"run_id": "r"})  # fmt: skip
    await it.store.put_with_embedding(NS, "a", {"kind": "note", "n": 1.0}, [1, 0, 0], {"m": 1})
    await it.store.put(NS, "b", {"kind": "note", "n": 2}, ttl_seconds=600)
    await it.log.append("t", [("a", "user", "m1"), ("b", "user", "m2"), ("c", "user", "m3")])


async def _expected(it: Opened, **more: Any) -> Any:
    snapshot = await it.backend.read_state("t")
    assert snapshot is not None
    return await it.backend.write_state(
        "t", {"said": ["word"] * 4, "n": 4}, checkpoint_id="v4", **more
    )


def _step(entry: Any) -> TurnStep:
    return TurnStep(thread_id="t", turn_key="k", owner="o", lease_seconds=30, entry=entry)


async def _quota(it: Opened) -> None:
    await it.backend.set_quota(QUOTA)
    await it.backend.get_quota()


async def _limited(it: Opened) -> None:
    await it.backend.set_quota(QUOTA)
    await it.backend.save("t", {"n": 4}, checkpoint_id="v4")


async def _renew_turn(it: Opened) -> None:
    await it.backend.step_turn(_step("queue"))
    await it.backend.step_turn(replace(_step("none"), lease_seconds=60))


async def _end_turn(it: Opened) -> None:
    await it.backend.step_turn(_step("queue"))
    await it.backend.end_turn("t", "k")


async def _save_in_turn(it: Opened) -> None:
    [turn] = await it.backend.step_turn(_step("queue"))
    place = holding.make_place(it.backend, "t")
    holding.hold(place, turn.number)
    await _expected(it)
    holding.release(place)


async def _reserve_move(it: Opened) -> None:
    await it.backend.write_layout(None, LAYOUT)
    await it.backend.reserve_move("t", None, MOVE, epoch=LAYOUT.epoch)


async def _prune_as_a_shard(it: Opened) -> None:
    """A change that finds nothing asks for the layout."""
    token = is_routed.set(True)
    try:
        await it.backend.prune("absent")
    finally:
        is_routed.reset(token)


async def _take_thread(it: Opened) -> None:
    thread = await it.backend.read_stored("t")
    assert thread is not None
    await _reserve_move(it)
    await it.backend.take_thread(thread, MOVE)


async def _join(it: Opened) -> None:
    """A chain of four records in two segments; a change of the first puts back both."""
    for n in range(1, 5):
        data = {"text": "word " * 100, "n": n}
        await it.backend.save("joined", data, checkpoint_id=f"v{n}")
    with patch.object(segments, "RECORDS", 2):
        await it.backend._join("joined", "")


async def _remove_joined(it: Opened) -> None:
    await _join(it)
    assert await it.backend.remove("joined", ["v2"]) == 1


async def _fetch_joined(it: Opened) -> None:
    await _join(it)
    version = await it.backend.version("joined", "v1")
    assert version is not None
    stored = await it.backend.fetch_head("joined", known=version.mark)
    assert stored is not None
    assert stored.basis == version.mark
    assert len(stored.payloads) == 2


async def _restore(it: Opened) -> None:
    archived = await it.backend.read_thread("t")
    assert archived is not None
    await it.backend.restore(replace(archived, thread_id="other"))


async def _write_thread(it: Opened) -> None:
    archived = await it.backend.read_thread("t")
    assert archived is not None
    await it.backend.write_thread(replace(archived, thread_id="other"))


async def _known(it: Opened) -> None:
    version = await it.backend.version("t")
    assert version is not None
    await it.backend.fetch_head("t", known=version.mark)


async def _states(it: Opened) -> None:
    found = await it.backend.history("t")
    await it.backend.read_states(found, lambda version, folder: folder.get_state())


async def _contents(it: Opened) -> None:
    await it.backend.contents(await it.backend.history("t"))


async def _known_version(it: Opened) -> None:
    it.backend.known_version("t", "v1")  # remembered: no round trip


async def _search_by_index(it: Opened) -> None:
    await it.backend.create_search_index()
    await it.backend.save("indexed", {"said": "word"})
    await it.backend.find("word")


async def _keep_last(it: Opened) -> None:
    await it.backend.write_state("t", {"n": 5}, checkpoint_id="v5", keep_last=1)


@asynccontextmanager
async def _begun() -> AsyncIterator[AsyncConnection]:
    """A transaction of the user's."""
    engine = create_async_engine(
        "oracle+oracledb_async://", connect_args={"async_creator_fn": oracledb.connect_async}
    )
    watched(engine.sync_engine)
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


async def _commit_on(it: Opened) -> None:
    async with _begun() as connection:
        await it.backend.write_state("t", {"n": 4}, checkpoint_id="v4", connection=connection)


async def _apply_on(it: Opened) -> None:
    async with _begun() as connection:
        await it.store.put(NS, "c", {"n": 3}, connection=connection)


BACKEND: dict[str, Scenario] = {
    "save/first": lambda it: it.backend.save("new", {"n": 1}, checkpoint_id="v1"),
    "save/append": lambda it: it.backend.save("t", {"said": ["word"] * 4}, checkpoint_id="v4"),
    "write_state/ttl": lambda it: _expected(it, ttl_seconds=60.0),
    "write_state/first_with_ttl": lambda it: it.backend.write_state(
        "new", {"n": 1}, checkpoint_id="v1", ttl_seconds=60.0),
    "write_state/keep_last": _keep_last,
    "write_state/fork": lambda it: it.backend.write_state(
        "t", {"n": 9}, checkpoint_id="f1", parent_id="v1"),
    "commit": lambda it: it.backend.write_state("t", {"n": 4}, checkpoint_id="v4"),
    "commit_on": _commit_on,
    "set_quota": lambda it: it.backend.set_quota(QUOTA),
    "get_quota": _quota,
    "save/limited": _limited,
    "load": lambda it: it.backend.load("t"),
    "load/id": lambda it: it.backend.load("t", "v1"),
    "fetch": lambda it: it.backend.fetch("t"),
    "fetch/writes": lambda it: it.backend.fetch("t", with_writes=True),
    "fetch/joined": _fetch_joined,
    "fetch/missing": lambda it: it.backend.fetch("absent"),
    "fetch_head": _known,
    "read_state": lambda it: it.backend.read_state("t"),
    "read_kept": lambda it: it.backend.read_kept("t"),
    "read_states": _states,
    "known_version": _known_version,
    "exists": lambda it: it.backend.exists("t"),
    "version": lambda it: it.backend.version("t", "v1"),
    "history": lambda it: it.backend.history("t"),
    "newest": lambda it: it.backend.newest(VersionsWanted(), 3),
    "newest/metadata": lambda it: it.backend.newest(VersionsWanted(metadata=(("k", "v"),)), 3),
    "contents": _contents,
    "history/before": lambda it: it.backend.history("t", before="v3"),
    "remove/versions": lambda it: it.backend.remove("t", ["v2"]),
    "remove/joined": _remove_joined,
    "remove/thread": lambda it: it.backend.remove("t"),
    "remove_thread": lambda it: it.backend.remove_thread("t"),
    "has_thread": lambda it: it.backend.has_thread("t"),
    "delete": lambda it: it.backend.delete("t", "v3"),
    "list_threads": lambda it: it.backend.list_threads(),
    "list_threads/pattern": lambda it: it.backend.list_threads(5, "t*", after="s"),
    "heads": lambda it: it.backend.heads(),
    "query/number": lambda it: it.backend.query("k", 3),
    "query/text": lambda it: it.backend.query("a.b", "it's"),
    "query/flag": lambda it: it.backend.query("k", True),
    "count": lambda it: it.backend.count("t%"),
    "query_by_metadata": lambda it: it.backend.query_by_metadata("k", 3),
    "search": lambda it: it.backend.search("word"),
    "search_data": lambda it: it.backend.search_data("n", 3),
    "find": lambda it: it.backend.find("word"),
    "create_search_index": _search_by_index,
    "copy_thread": lambda it: it.backend.copy_thread("t", "copy"),
    "scan": lambda it: it.backend.scan(),
    "read_thread": lambda it: it.backend.read_thread("t"),
    "read_stored": lambda it: it.backend.read_stored("t"),
    "restore": _restore,
    "write_thread": _write_thread,
    "put_writes": lambda it: it.backend.put_writes("t", "v3", [replace(WRITE, task_id="other")]),
    "put_writes/special": lambda it: it.backend.put_writes("t", "v3", [replace(WRITE, idx=-1)]),
    "store_writes": lambda it: it.backend.store_writes(
        PutWrites(thread_id="t", checkpoint_id="v3", writes=[replace(WRITE, idx=1)])),
    "get_writes": lambda it: it.backend.get_writes("t", "v3"),
    "writes_of": lambda it: it.backend.writes_of("t", ["v2", "v3"]),
    "namespaces": lambda it: it.backend.namespaces("t"),
    "records": lambda it: it.backend.records("t", first=1, last=3),
    "measure_versions": lambda it: it.backend.measure_versions("t", first=1, last=3),
    "find_statuses": lambda it: it.backend.find_statuses(STATUSES),
    "tagged": lambda it: it.backend.tagged("k", 1),
    "prune": lambda it: it.backend.prune("t"),
    "prune/sharded": _prune_as_a_shard,
    "threads_of": lambda it: it.backend.threads_of("u"),
    "forget_user": lambda it: it.backend.forget_user("u"),
    "threads_where": lambda it: it.backend.threads_where("k", 1),
    "find_threads": lambda it: it.backend.find_threads("k", 1),
    "forget_where": lambda it: it.backend.forget_where("k", 1),
    "tenants": lambda it: it.backend.tenants(),
    "may_see_all_tenants": lambda it: it.backend.may_see_all_tenants(),
    "damage": lambda it: it.backend.damage(),
    "join": _join,
    "facts": lambda it: it.backend.facts(),
    "tenant_facts": lambda it: it.backend.tenant_facts(),
    "vacuum": lambda it: it.backend.vacuum(30),
    "vacuum_report": lambda it: it.backend.vacuum_report(0),
    "expire": lambda it: it.backend.expire(),
    "renew": lambda it: it.backend.renew("t", 60),
    "put_thread": lambda it: it.backend.put_thread("t", user_id="u", name="n", metadata={"k": 1}),
    "put_thread/first": lambda it: it.backend.put_thread("new", name="n"),
    "claim_thread": lambda it: it.backend.claim_thread("t", "u"),
    "clear_versions": lambda it: it.backend.clear_versions("t"),
    "thread_facts": lambda it: it.backend.thread_facts("t"),
    "threads_by_activity": lambda it: it.backend.threads_by_activity(),
    "threads_by_activity/user": lambda it: it.backend.threads_by_activity("u", offset=1, limit=3),
    "threads_by_activity/search": lambda it: it.backend.threads_by_activity("u", search="n"),
    "list_writes": lambda it: it.backend.list_writes("t", ""),
    "list_writes/checkpoint": lambda it: it.backend.list_writes("t", "", "v3"),
    "step_turn": lambda it: it.backend.step_turn(_step("queue")),
    "step_turn/renewed": _renew_turn,
    "end_turn": _end_turn,
    "list_turns": lambda it: it.backend.list_turns(),
    "list_turns/thread": lambda it: it.backend.list_turns("t"),
    "write_state/turn": _save_in_turn,
    "read_layout": lambda it: it.backend.read_layout(),
    "write_layout": lambda it: it.backend.write_layout(None, LAYOUT),
    "find_move": lambda it: it.backend.find_move("t"),
    "list_moves": lambda it: it.backend.list_moves(),
    "reserve_move": _reserve_move,
    "list_open_transactions": lambda it: it.backend.list_open_transactions(),
    "take_thread": _take_thread,
    "drop_move": lambda it: it.backend.drop_move(MOVE),
    "admit_thread": lambda it: it.backend.admit_thread("t", "other"),
    "get_last_active_at": lambda it: it.backend.get_last_active_at("t"),
    "list_recent_before": lambda it: it.backend.list_recent_before(
        FOREVER, 3, "*", with_ties=False),
    "list_active_heads": lambda it: it.backend.list_active_heads(3),
    "find_active_facts": lambda it: it.backend.find_active_facts(WANTED),
}  # fmt: skip

SAVER: dict[str, Scenario] = {
    "put": lambda it: it.saver.put(thread_id="s", checkpoint_id="c2", checkpoint_data={"n": 2},
                                   parent_checkpoint_id="c1"),
    "get": lambda it: it.saver.get(thread_id="s"),
    "list_checkpoints": lambda it: it.saver.list_checkpoints(thread_id="s"),
    "put_writes": lambda it: it.saver.put_writes(thread_id="s", checkpoint_id="c1", task_id="x",
                                                 writes=[("channel", 1)]),
    "get_writes": lambda it: it.saver.get_writes(thread_id="s", checkpoint_id="c1"),
    "namespaces": lambda it: it.saver.namespaces("t"),
    "copy_thread": lambda it: it.saver.copy_thread("s", "copy"),
    "delete_thread": lambda it: it.saver.delete_thread("s"),
    "delete_for_runs": lambda it: it.saver.delete_for_runs(["r"]),
    "prune": lambda it: it.saver.prune(["t"]),
}  # fmt: skip

STORE: dict[str, Scenario] = {
    "put/new": lambda it: it.store.put(NS, "c", {"n": 1}, {"m": 1}),
    "put/again": lambda it: it.store.put(NS, "a", None, expected_version=1),
    "put_with_embedding": lambda it: it.store.put_with_embedding(NS, "c", 1, [0, 1, 0]),
    "put_batch": lambda it: it.store.put_batch([(NS, "a", 1), (NS, "c", 2)]),
    "apply": lambda it: it.store.apply([Put(namespace=NS, key="c", json=b"1", metadata={})]),
    "get": lambda it: it.store.get(NS, "a"),
    "get_item": lambda it: it.store.get_item(NS, "a"),
    "get_batch": lambda it: it.store.get_batch([(NS, "a"), (NS, "b")]),
    "read": lambda it: it.store.read([(NS, "a")]),
    "exists": lambda it: it.store.exists(NS, "a"),
    "list": lambda it: it.store.list(NS, after="a"),
    "list_keys": lambda it: it.store.list_keys(NS),
    "page": lambda it: it.store.page(NS, 10, None),
    "search": lambda it: it.store.search(("memory",)),
    "search/filter": lambda it: it.store.search(("memory",), filter={"kind": "note", "n": 1}),
    "search/text": lambda it: it.store.search((), "note"),
    "search_many": lambda it: it.store.search_many([NS, ("other",)]),
    "search_by_embedding": lambda it: it.store.search_by_embedding(("memory",), [1, 0, 0], 1),
    "get_embedding": lambda it: it.store.get_embedding(NS, "a"),
    "vectors_of": lambda it: it.store.vectors_of(NS, "a"),
    "list_namespaces": lambda it: it.store.list_namespaces(("memory",)),
    "namespaces": lambda it: it.store.namespaces(NamespaceMatch(prefix=("memory",)), 10, 0),
    "clear_namespace": lambda it: it.store.clear_namespace(("memory",), recursive=True),
    "clear": lambda it: it.store.clear(NS, recursive=False),
    "apply_on": _apply_on,
    "delete": lambda it: it.store.delete(NS, "a"),
    "touch": lambda it: it.store.touch(NS, "b"),
    "renew": lambda it: it.store.renew([(NS, "b")]),
    "expire": lambda it: it.store.expire(),
    "sweep": lambda it: it.store.sweep(10),
}  # fmt: skip

LOG: dict[str, Scenario] = {
    "append": lambda it: it.log.append("t", [(n,) for n in range(200)]),
    "append/first": lambda it: it.log.append("new", [("a", "user", None, {"k": 1}, "text")]),
    "append/again": lambda it: it.log.append("t", [("A", "user", "m1"), ("d", "user", "m4")]),
    "append/expected": lambda it: it.log.append("n", [("a",)], expected_revision=0),
    "append/namespace": lambda it: it.log.append("t", [("a",)], namespace="sub"),
    "append/also": lambda it: it.log.append("t", [("a",)], also={"sub": [("b",)]}),
    "pop": lambda it: it.log.pop("t"),
    "replace": lambda it: it.log.replace("t", 1, [("x",)]),
    "remove": lambda it: it.log.remove("t", ["m1", "m2"]),
    "clear": lambda it: it.log.clear("t"),
    "delete": lambda it: it.log.delete("t"),
    "delete/namespace": lambda it: it.log.delete("t", namespace="sub"),
    "load": lambda it: it.log.load("t"),
    "load/newest": lambda it: it.log.load("t", newest=2),
    "contents": lambda it: it.log.contents("t"),
    "contents/newest": lambda it: it.log.contents("t", newest=2),
    "read": lambda it: it.log.read("t"),
    "page": lambda it: it.log.page("t", offset=1, limit=2),
    "page/after": lambda it: it.log.page("t", after="m1", limit=2),
    "page/filtered": lambda it: it.log.page("t", role="r", until=FOREVER, newest_first=True),
    "page/search": lambda it: it.log.page("t", search="B", after="m1"),
    "get": lambda it: it.log.get("t", "m2"),
    "info": lambda it: it.log.info("t"),
    "logs": lambda it: it.log.logs(prefix="t", namespace="", after=("a", "")),
    "heads": lambda it: it.log.heads(prefix="t", namespace="", after=("a", "")),
}

SCENARIOS: dict[str, Scenario] = {
    f"{kind}.{name}": call
    for kind, calls in (("backend", BACKEND), ("saver", SAVER), ("store", STORE), ("log", LOG))
    for name, call in calls.items()
}

SAME: dict[str, tuple[str, ...]] = {
    "backend": ("recent", "put_facts", "facts_of", "find_facts"),
    "saver": ("renewals", "busy", "turns", "release_turn", "effect", "effects", "resolve_effect"),
    "store": ("recent", "nearest"),
    "log": (
        *("change", "look", "look_at_contents", "find_logs", "find_heads", "drop"),
        *("busy", "turns", "release_turn"),
    ),
}
"""Public methods that another one of the list calls with nothing but its own arguments checked."""
