"""The contract of a message log: subclass it and give it a fixture to test a log completely.

::

    class TestMine(MessageLogContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda **options: MyMessageLog(tmp_path / "mine", **options)
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from locus_store.errors import ConflictError, UnsupportedError
from locus_store.testing.kit import (
    LONG,
    LOOPS,
    SHORT,
    Another,
    MessageLogKit,
    fail_one_in_three,
    make_named,
    make_new,
    run_in_loops,
    seam,
    unwrap,
    wait_for_expiry,
)
from locus_store.testing.message_pages import Keeping, Owning, Paging
from locus_store.testing.message_rules import Appending, Changing, MessageArguments
from locus_store.testing.turns import MessageTurns


@seam("connection", "loop")
class MessageConcurrency(MessageLogKit):
    """One log serves many tasks, event loops and threads; several objects share a storage."""

    async def test_racing_appends_lose_and_double_nothing(self, several: list[Any]) -> None:
        async def write(n: int) -> None:
            for turn in range(6):
                batch = make_new(*([n, turn, it] for it in range(3)))
                await several[n].append("t", batch, namespace=("", "sub")[n % 2])

        await asyncio.gather(*map(write, range(8)))
        for at, namespace in enumerate(("", "sub")):
            found = await several[0].read("t", namespace=namespace)
            written = unwrap(found.messages) or []
            assert found.info.count == len(written) == 4 * 6 * 3
            for n in range(at, 8, 2):
                mine = [it for it in written if it[0] == n]
                assert mine == [[n, turn, it] for turn in range(6) for it in range(3)]
            batches = [written[it : it + 3] for it in range(0, len(written), 3)]
            assert all(len({(it[0], it[1]) for it in batch}) == 1 for batch in batches)

    async def test_racing_upserts_of_one_id_keep_one_message(self, several: list[Any]) -> None:
        puts = [
            several[n].append("t", make_named("same", f"m{n}"), metadata={"n": n})
            for n in range(20)
        ]
        revisions = await asyncio.gather(*puts)
        found = await several[0].read("t")
        ids = [it.message_id for it in found.messages]
        assert ids[0] == "same"
        assert sorted(ids) == sorted(["same", *(f"m{n}" for n in range(20))])
        assert found.info.count == 21
        assert found.info.revision == max(revisions)
        assert len(set(revisions)) == 20

    async def test_of_racing_writes_that_expect_no_log_one_wins(self, several: list[Any]) -> None:
        for turn in range(3):
            puts = [
                several[n].append(f"t{turn}", make_new(n), expected_revision=0) for n in range(12)
            ]
            results = await asyncio.gather(*puts, return_exceptions=True)
            won = [n for n, it in enumerate(results) if isinstance(it, int)]
            assert sum(isinstance(it, ConflictError) for it in results) == 11
            assert unwrap(await several[0].load(f"t{turn}")) == won

    async def test_a_counter_that_expects_revisions_loses_no_step(self, several: list[Any]) -> None:
        async def count(log: Any) -> None:
            steps = 0
            while steps < 4:
                found = await log.read("t")
                revision, last = (
                    (found.info.revision, found.messages[-1].content) if found else (0, 0)
                )
                try:
                    if found and last % 3 == 0:
                        place, new = found.info.count - 1, make_new(last, last + 1)
                        await log.replace("t", place, new, expected_revision=revision)
                    else:
                        await log.append("t", make_new(last + 1), expected_revision=revision)
                    steps += 1
                except ConflictError:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count(several[n]) for n in range(5)))
        assert unwrap(await several[0].load("t")) == [*range(1, 21)]

    async def test_a_log_that_counts_another_one_is_never_wrong(self, several: list[Any]) -> None:
        async def count(n: int) -> None:
            log, steps = several[n], 0
            while steps < 4:
                found = await log.read("t", namespace="count", newest=1)
                revision = found.info.revision if found else 0
                counted = [(found.messages[0].content if found else 0) + 2, "user", "counted"]
                more = {"": make_new([n, steps], [n, steps])}
                with suppress(ConflictError):
                    await log.append(
                        "t", [(*counted,)], namespace="count", expected_revision=revision, also=more
                    )
                    steps += 1

        await asyncio.gather(*map(count, range(5)))
        heads = {it.info.namespace: it for it in await several[0].heads("t")}
        assert unwrap(heads["count"].messages) == [40]
        assert heads[""].info.count == 40

    async def test_racing_pops_give_each_message_once(self, several: list[Any]) -> None:
        await several[0].append("t", make_new(*range(15)))
        pops = [several[n].pop("t") for n in range(20)]
        found = [it.message.content for it in await asyncio.gather(*pops) if it.message]
        assert sorted(found) == [*range(15)]
        assert await several[0].load("t") == []

    async def test_appends_and_deletions_race_without_harm(self, several: list[Any]) -> None:
        async def write(n: int) -> None:
            for turn in range(6):
                await several[n].append("t", make_new(turn), namespace=f"{n % 2}")

        async def remove(n: int) -> None:
            for _ in range(6):
                await several[n].delete("t", namespace=None if n % 2 else "0")
                await several[n].clear("t", namespace="1")

        await asyncio.gather(*map(write, range(6)), *map(remove, range(2)))
        for info in await several[0].logs("t"):
            found = await several[0].load("t", namespace=info.namespace)
            assert len(found) == info.count
        await several[0].delete("t")
        await several[0].append("t", make_new("x"))
        assert unwrap(await several[0].load("t")) == ["x"]

    async def test_a_change_continues_when_its_caller_is_cancelled(self, log: Any) -> None:
        await log.append("t", make_named(*(f"m{n}" for n in range(50))))
        calls: tuple[Any, ...] = (
            lambda: log.append("u", make_new(*range(50))),
            lambda: log.replace("t", 10, make_new(*range(50))),
        )
        for call in calls:
            task = asyncio.ensure_future(call())
            for _ in range(2):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await log.close()  # waits for what is under way
        assert len(await log.load("t")) in {50, 60}
        assert len(await log.load("u") or range(50)) == 50

    async def test_a_failing_append_harms_no_other(self, log: Any) -> None:
        appended = await fail_one_in_three(lambda n: log.append("t", make_new(n)))
        assert sorted(unwrap(await log.load("t")) or []) == appended

    async def test_it_works_in_several_loops_at_once(self, log: Any) -> None:
        async def append_turns(thread: str) -> None:
            for turn in range(5):
                await log.append(thread, make_new(turn))
                await log.append("shared", make_new([thread, turn]))
                assert unwrap(await log.load(thread)) == [*range(turn + 1)]

        await run_in_loops(append_turns)
        assert (await log.info("shared")).count == 5 * len(LOOPS)


class LogsOfThreads(MessageLogKit):
    """A log belongs to its thread, beside the states."""

    async def test_a_log_makes_a_thread_until_its_deletion(self, log: Any, backend: Any) -> None:
        await log.append("t", make_new(1), namespace="sub")
        assert await backend.exists("t") is True
        assert await backend.list_threads() == await backend.scan() == ["t"]
        await log.clear("t", namespace="sub")
        assert await backend.exists("t") is True
        await log.delete("t")
        assert await backend.exists("t") is False
        assert await backend.list_threads() == await backend.scan() == []

    async def test_deleting_the_thread_removes_its_logs(self, log: Any, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        for namespace in ("", "sub"):
            await log.append("t", make_new(1), namespace=namespace)
        assert await backend.delete("t") is True
        assert await log.logs("t") == []
        await log.append("t", make_new(2))
        assert unwrap(await log.load("t")) == [2]

    async def test_deleting_log_or_versions_leaves_the_other(self, log: Any, backend: Any) -> None:
        for name in ("t", "u"):
            await backend.save(name, {"n": 1}, checkpoint_id="v")
            await log.append(name, make_new(1))
        await log.delete("t")
        assert (await backend.load("t"), await log.load("t")) == ({"n": 1}, None)
        await backend.delete("u", "v")
        assert unwrap(await log.load("u")) == [1]
        assert sorted(await backend.list_threads()) == ["t", "u"]

    async def test_a_change_of_a_log_is_activity(self, log: Any, backend: Any) -> None:
        for name in "abc":
            await backend.save(name, {"n": 1})
        assert await backend.list_threads() == ["c", "b", "a"]
        await log.append("a", make_named("m", "n"))
        await log.append("d", make_new(1))
        assert await backend.list_threads() == ["d", "a", "c", "b"]
        await backend.save("c", {"n": 2})
        await log.pop("a")
        assert await backend.list_threads() == ["a", "c", "d", "b"]
        found = await backend.recent()
        assert found[0].active_at == (await log.info("a")).changed_at
        for size in (1, 2):
            paged: list[str] = []
            while page := await backend.list_threads(size, after=paged[-1] if paged else None):
                paged += page
            assert paged == ["a", "c", "d", "b"]

    async def test_reading_and_deleting_logs_is_no_activity(self, log: Any, backend: Any) -> None:
        for name in "abc":
            await backend.save(name, {"n": 1})
            await log.append(name, make_new(1))
        await log.load("a")
        await log.page("a", search="x")
        await log.append("a", [])
        await log.delete("b")
        assert await backend.list_threads() == ["c", "b", "a"]

    async def test_a_copied_thread_has_its_logs(self, log: Any, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        for namespace in ("", "sub", "empty"):
            await log.append("t", make_named("a", "b"), namespace=namespace)
        await log.clear("t", namespace="empty")
        assert await backend.copy_thread("t", "copy") is True
        for namespace in ("", "sub", "empty"):
            one, other = [await log.read(it, namespace=namespace) for it in ("t", "copy")]
            assert other.messages == one.messages
            assert other.info == replace(one.info, thread_id="copy")
        await log.append("copy", make_named("b", "c"))
        assert unwrap(await log.load("copy")) == ["a", "b", "c"]
        assert unwrap(await log.load("t")) == ["a", "b"]

    async def test_an_archived_thread_has_its_logs(self, log: Any, backend: Any) -> None:
        for namespace in ("", "sub", "empty"):
            await log.append("t", make_named("a", "b", "c"), namespace=namespace)
            await log.pop("t", namespace=namespace)
        await log.clear("t", namespace="empty")
        before = [await log.read("t", namespace=it) for it in ("", "sub", "empty")]
        thread = await backend.read_thread("t")
        assert await backend.write_thread(thread) is False
        await backend.replace_thread(thread, thread)
        await backend.delete("t")
        assert await backend.write_thread(thread) is True
        assert await backend.read_thread("t") == thread
        assert [await log.read("t", namespace=it) for it in ("", "sub", "empty")] == before
        revision = before[0].info.revision
        await log.append("t", make_named("d"), expected_revision=revision)
        assert unwrap(await log.load("t")) == ["a", "b", "d"]

    async def test_a_restored_log_has_no_revision_twice(self, log: Any, backend: Any) -> None:
        await log.append("t", make_named("a"))
        thread = await backend.read_thread("t")
        lost = await log.append("t", make_named("lost"))
        await backend.delete("t")
        await backend.write_thread(thread)
        assert await log.append("t", make_named("b")) > lost

    async def test_a_long_log_is_copied_listed_and_deleted(self, log: Any, backend: Any) -> None:
        count = 2000
        await log.append("t", make_new(*range(count)), namespace="sub")
        assert await backend.copy_thread("t", "copy") is True
        found = await log.load("copy", namespace="sub")
        assert unwrap(found) == [*range(count)]
        assert [it.count for it in await log.logs(namespace="sub")] == [count, count]
        assert await backend.vacuum(1) == 0
        assert await log.delete("copy") is True
        assert await backend.list_threads() == ["t"]

    async def test_a_change_renews_the_threads_time_to_live(
        self, reopen: Another, log: Any, other: Any, backend: Any
    ) -> None:
        async with reopen(ttl_seconds=LONG) as renewing:
            await renewing.append("t", make_new(1))
            first = (await backend.read_thread("t")).expires_at
            assert first is not None
            for thread in ("state", "u"):
                await backend.write_state(thread, {"n": 1}, ttl_seconds=LONG / 100)
            soon = (await backend.read_thread("u")).expires_at
            await renewing.append("state", make_new(1))
            assert (await backend.read_thread("state")).expires_at > soon
            await log.append("u", make_new(1))
            assert (await backend.read_thread("u")).expires_at == soon
            for change in (renewing.append("u", make_new(2)), renewing.pop("u")):
                await change
                assert (await backend.read_thread("u")).expires_at > soon

    async def test_an_expired_thread_has_no_log(self, reopen: Another) -> None:
        async with reopen(ttl_seconds=SHORT) as log:
            await log.append("t", make_named("a"))
            await wait_for_expiry(log.info, "t")
            assert await log.load("t") is None
            assert await log.page("t") == await log.logs() == await log.contents("t") == []
            assert await log.get("t", "a") is None
            assert await log.clear("t") == 0
            assert await log.delete("t") is False
        async with reopen() as log:
            await log.append("t", make_named("b"), expected_revision=0)
            assert unwrap(await log.load("t")) == ["b"]

    async def test_a_tenant_sees_its_own_logs_only(self, log: Any) -> None:
        try:
            acme, globex = map(log.for_tenant, ("acme", "globex"))
        except UnsupportedError:
            pytest.skip(f"{type(log).__name__} has no tenants")
        for tenant_log, text in ((acme, "a"), (globex, "g")):
            await tenant_log.append("t", [(text, "user", "m")])
        assert [unwrap(await it.load("t")) for it in (acme, globex, log)] == [["a"], ["g"], None]
        assert len(await acme.logs()) == 1
        assert await log.logs() == []
        assert await acme.delete("t") is True
        assert unwrap(await globex.load("t")) == ["g"]


class MessageLogContract(
    Appending, Changing, MessageArguments, Paging, MessageConcurrency, LogsOfThreads, Owning,
    MessageTurns, Keeping,
):  # fmt: skip
    """Everything that a ``BaseMessageLog`` promises; see the module's docstring."""
