"""Saves and pending writes of many callers in one statement: each is answered by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionError

from locus_store import BackendError, ConnectionFailedError, PostgreSQLBackend
from locus_store.backends.postgresql.contents import LONE_WRITES
from locus_store.backends.postgresql.pending_writes import WriteBatches
from locus_store.backends.postgresql.save_groups import Saves
from locus_store.sql.connections.lending import await_only
from locus_store.types import PendingWrite

pytestmark = pytest.mark.anyio


def written(task_id: str, idx: int = 0, payload: bytes = b"{}", **more: Any) -> PendingWrite:
    return PendingWrite(
        task_id=task_id, idx=idx, channel="c", type="json", payload=payload, task_path="", **more
    )


@pytest.fixture
async def backend(migrated_database):
    async with PostgreSQLBackend(migrated_database, pool_size=4) as made:
        yield made


@pytest.fixture
def groups(monkeypatch) -> list[int]:
    """Sizes of the groups that are sent."""
    sizes: list[int] = []
    send = WriteBatches._run

    async def noted(self, batches):
        sizes.append(len(batches))
        return await send(self, batches)

    monkeypatch.setattr(WriteBatches, "_run", noted)
    return sizes


async def test_writes_of_many_threads_share_statements_and_are_all_there(backend, groups) -> None:
    threads = [f"t{it}" for it in range(50)]
    for name in threads[:40]:  # those of the others come before their checkpoints
        await backend.write_state(name, {"k": 1}, checkpoint_id="v")
    await asyncio.gather(
        *(backend.put_writes(name, "v", [written(name, it) for it in range(3)]) for name in threads)
    )
    assert max(groups) > 1
    for name in threads:
        found = await backend.get_writes(name, "v")
        assert [(it.task_id, it.idx) for it in found] == [(name, it) for it in range(3)]


@pytest.mark.parametrize(
    ("error", "told"),
    [(ConnectionFailedError, ConnectionFailedError), (NoConnectionError, BackendError)],
)
async def test_batches_share_the_error_of_a_server_that_is_away(
    backend, monkeypatch, error: type[Exception], told: type[Exception]
) -> None:
    """One by one, each would wait for the server again."""
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    groups: list[int] = []

    async def refuse(_: WriteBatches, batches: Any) -> None:
        groups.append(len(batches))
        raise error("no answer in time")

    monkeypatch.setattr(WriteBatches, "_run", refuse)
    puts = [backend.put_writes("t", "v", [written(f"task{it:02}")]) for it in range(40)]
    [_, *answers] = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(it) for it in answers] == [told] * 39
    assert sum(groups) <= 40


@pytest.mark.parametrize("is_new", [False, True])
async def test_tasks_of_one_checkpoint_share_statements(backend, groups, is_new: bool) -> None:
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    namespace = "new" if is_new else ""
    tasks = [f"task{it:02}" for it in range(40)]
    await asyncio.gather(
        *(backend.put_writes("t", "v", [written(it)], namespace=namespace) for it in tasks)
    )
    assert len(groups) <= 4
    found = await backend.get_writes("t", "v", namespace=namespace)
    assert [it.task_id for it in found] == tasks


@pytest.mark.parametrize("length", range(1, LONE_WRITES + 2))
async def test_a_lone_batch_of_any_length_is_stored(backend, length: int) -> None:
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    writes = [written("one", it, b"%d" % it) for it in range(length)]
    await backend.put_writes("t", "v", writes, must_exist="checkpoint", ttl_seconds=60)
    await backend.put_writes("t", "v", [written("one", it, b"later") for it in range(length)])
    assert await backend.get_writes("t", "v") == writes


async def test_writers_of_one_task_do_not_meet_in_a_statement(backend) -> None:
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    await asyncio.gather(
        *(backend.put_writes("t", "v", [written("one", 0, b"%d" % it)]) for it in range(20)),
        *(backend.put_writes("t", "v", [written("one", -1, b"%d" % it)]) for it in range(20)),
    )
    found = await backend.get_writes("t", "v")
    assert [(it.task_id, it.idx) for it in found] == [("one", -1), ("one", 0)]


async def test_pending_writes_do_not_wait_for_records_that_are_joined(backend) -> None:
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    is_locked, may_end = asyncio.Event(), asyncio.Event()

    def join(repo: Any) -> None:
        assert repo.lock_unheld("t", "")
        is_locked.set()
        await_only(may_end.wait())

    joining = asyncio.create_task(backend._write(join))
    await is_locked.wait()
    async with asyncio.timeout(60):
        await backend.put_writes("t", "v", [written("task")])
    may_end.set()
    await joining


async def test_a_change_of_a_version_that_is_gone_is_refused_alone(backend, groups) -> None:
    marks = {}
    for name in ("a", "b", "c"):
        marks[name] = (await backend.write_state(name, {"k": 1}, checkpoint_id="v")).mark
    await backend.write_state("b", {"k": 2}, checkpoint_id="v", is_root=True)
    stored = await asyncio.gather(
        *(
            backend.put_writes(name, "v", [written("x", basis=mark.sequence)], known=mark)
            for name, mark in marks.items()
        )
    )
    assert stored == [True, False, True]
    assert not await backend.get_writes("b", "v")


async def test_what_a_group_fails_for_is_found_out_one_by_one(backend, groups, monkeypatch) -> None:
    for name in ("a", "b", "c"):
        await backend.write_state(name, {"k": 1}, checkpoint_id="v")
    run = WriteBatches._run

    async def failing(self, batches):
        if any(it.thread_id == "b" for it in batches):
            raise self._database.driver_errors[0]("no")
        return await run(self, batches)

    monkeypatch.setattr(WriteBatches, "_run", failing)
    results = await asyncio.gather(
        *(backend.put_writes(name, "v", [written("x")]) for name in ("a", "b", "c", "a", "c")),
        return_exceptions=True,
    )
    assert [isinstance(it, Exception) for it in results] == [False, True, False, False, False]
    assert [len(await backend.get_writes(name, "v")) for name in ("a", "b", "c")] == [1, 0, 1]


async def test_a_caller_that_is_cancelled_leaves_the_others_alone(backend) -> None:
    await backend.write_state("t", {"k": 1}, checkpoint_id="v")
    calls = [
        asyncio.ensure_future(backend.put_writes("t", "v", [written(str(it))])) for it in range(20)
    ]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    found = {it.task_id for it in await backend.get_writes("t", "v")}
    assert found >= {str(it) for it in range(1, 20, 2)}


@pytest.mark.parametrize(("count", "expected"), [(31, [31]), (32, [16, 16]), (65, [33, 32])])
async def test_many_saves_are_divided_among_the_senders(
    count: int, expected: list[int], backend, monkeypatch
) -> None:
    sizes: list[int] = []
    run = Saves._run

    async def noted(self, items, deadline):
        sizes.append(len(items))
        return await run(self, items, deadline)

    await backend.exists("nobody")
    monkeypatch.setattr(Saves, "_run", noted)
    saves = (backend.write_state(f"t{it}", {"n": it}) for it in range(count))
    assert len(await asyncio.gather(*saves)) == count
    assert sizes == expected
