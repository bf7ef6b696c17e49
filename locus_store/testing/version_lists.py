"""Lists of versions and of threads, in the order of their saves."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from locus_store.backend import ListsVersions
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import NotFoundError
from locus_store.testing.existing import make_logged_thread, make_message, rewrite
from locus_store.testing.kit import requires, seam, tick
from locus_store.testing.steps import BackendKit, check_records, make_write
from locus_store.types import Version, VersionsWanted

NAMES = ("", "a", "a|b", "é")
ODD = '\x01\0\\"\u2028'
"""Text that JSON, or the JSON of a database, escapes."""


@seam("connection", "layout")
@requires("branching", ListsVersions)
class VersionLists(BackendKit):
    """``newest`` and ``contents`` of backends that list versions by their time."""

    @requires("branching", ListsVersions, "ttl")
    async def test_an_expired_thread_is_not_listed(self, backend: Any) -> None:
        await _save(backend, "t", "a", 1, ttl_seconds=1e-6)
        await _save(backend, "live", "", 1)
        for limit in (1, 9, 5_000):
            assert await backend.newest(VersionsWanted(thread_id="t"), limit) == []
            found = await backend.newest(VersionsWanted(), limit)
            assert [it.thread_id for it in found] == ["live"]

    async def test_pages_give_each_version_once(self, backend: Any) -> None:
        await _grow(backend)
        for thread_id, threads in (("t", ["t"]), (None, ["t", "other"])):
            found: list[Version] = []
            wanted = VersionsWanted(thread_id=thread_id, may_continue=True)
            while page := await backend.newest(wanted, 3):
                found += page
                wanted = replace(wanted, after=page[-1])
            assert found == await _list_expected(backend, *threads)

    async def test_conditions_restrict_the_list(self, backend: Any) -> None:
        await _grow(backend)
        every = await _list_expected(backend, "t", "other")
        for thread_id, name, value in (
            (None, "namespace", "a"),
            ("t", "namespace", "a"),
            ("t", "checkpoint_id", "v3"),
        ):
            options: dict[str, Any] = {"thread_id": thread_id, name: value}
            expected = [it for it in every if thread_id in {None, it.thread_id}]
            expected = [it for it in expected if getattr(it, name) == value]
            assert await backend.newest(VersionsWanted(**options), 100) == expected
        wanted = VersionsWanted(thread_id="t", namespace="", before="v3")
        expected = [it for it in every if (it.thread_id, it.namespace) == ("t", "")]
        expected = [it for it in expected if it.checkpoint_id < "v3"]
        assert await backend.newest(wanted, 100) == expected

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_list_is_that_of_the_histories(self, backend: Any, seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311  (no secret)
        await _grow_at_random(backend, dice)
        for thread_id in ("t", "other", None):
            threads = ["t", "other"] if thread_id is None else [thread_id]
            wanted = VersionsWanted(thread_id=thread_id)
            expected = await _list_expected(backend, *threads)
            for limit in (0, 1, 2, 7, len(expected), len(expected) + 1, 5_000):
                assert await backend.newest(wanted, limit) == expected[:limit]
            below = replace(wanted, before=f"v{dice.randrange(40)}")
            expected = await _list_expected(backend, *threads, before=below.before)
            assert await backend.newest(below, 999) == expected
            expected = [it for it in expected if it.namespace == "a"]
            assert await backend.newest(replace(below, namespace="a"), 2) == expected[:2]

    @pytest.mark.parametrize(
        ("key", "value"),
        [("user", "ü"), ("user", "other"), ("n", 3), ("user", "nobody"), ("odd", ODD)],
    )
    async def test_a_hint_keeps_what_has_it(self, backend: Any, key: str, value: Any) -> None:
        await _grow(backend)

        def has(version: Version) -> bool:
            held = version.metadata[key]
            return held == value or (isinstance(held, list) and value in held)

        for thread_id, threads in (("t", ["t"]), (None, ["t", "other"])):
            wanted = VersionsWanted(thread_id=thread_id, metadata=((key, value),))
            found = [it for it in await backend.newest(wanted, 100) if has(it)]
            assert found == [it for it in await _list_expected(backend, *threads) if has(it)]

    async def test_contents_give_the_states_and_writes_of_versions(self, backend: Any) -> None:
        await _grow(backend)
        for name, task in (("v6", "one"), ("v4", "two"), ("v4", "a")):
            await backend.put_writes(
                "t", name, [make_write(task), make_write(task, idx=-1)], namespace="a"
            )
        every = await _list_expected(backend, "t", "other")
        for store in {it.mark.store for it in every}:  # each database counts its lines
            await self._check_contents(backend, [it for it in every if it.mark.store == store])
        assert await backend.contents([]) == []

    async def _check_contents(self, backend: Any, versions: list[Version]) -> None:
        for wanted in (versions, versions[::3], 30 * versions, *([it] for it in versions[:3])):
            contents = {it.line: it for it in await backend.contents(wanted)}
            assert contents.keys() == {it.mark.line for it in wanted}
            for version in wanted[: len(versions)]:
                line = contents[version.mark.line]
                check_records(version, line.records, {"n": int(version.checkpoint_id[1:])})
                writes = await backend.get_writes(
                    version.thread_id, version.checkpoint_id, namespace=version.namespace
                )
                assert line.writes.get(version.checkpoint_id, []) == writes


async def _save(backend: Any, thread_id: str, namespace: str, n: int, **more: Any) -> None:
    """Save a version whose metadata has its number, and every second time a user."""
    user = {"user": "ü"} if n % 2 else {"user": ["other"]}
    await backend.write_state(
        thread_id, {"n": n}, namespace=namespace, checkpoint_id=f"v{n}",
        metadata={"n": n, "odd": ODD, **user}, **more,
    )  # fmt: skip


async def _grow(backend: Any) -> None:
    """Save threads with several namespaces, in turn; hide, remove and fork some versions."""
    for n in range(6):
        for namespace in NAMES:
            await _save(backend, "t", namespace, n)
        await _save(backend, "other", NAMES[n % 2], n)
    await _save(backend, "t", "a", 6, keep_last=2)
    await _save(backend, "t", "é", 7, parent_id="v1")
    await backend.remove("t", ["v5"], namespace="a|b")  # the newest of its namespace
    await backend.put_writes("t", "v1", [make_write("x")], namespace="writes alone")
    for n in range(3):
        await _save(backend, "gone", "", n)
    await backend.remove("gone")


async def _grow_at_random(backend: Any, dice: random.Random) -> None:
    """Save, fork, hide and remove versions of two threads, and store pending writes."""
    ids: dict[tuple[str, str], list[str]] = {}
    for n in range(40):
        place = dice.choice(("t", "t", "other")), dice.choice(NAMES)
        there = ids.setdefault(place, [])
        match dice.randrange(8) if there else 7:
            case 0:
                await backend.remove(place[0], [there.pop()], namespace=place[1])
            case 1:
                writes = [make_write("task")]
                await backend.put_writes(place[0], dice.choice(there), writes, namespace=place[1])
            case 2:
                await _save(backend, *place, n, keep_last=2)
                there[:] = [*there[-1:], f"v{n}"]
            case 3:
                await _save(backend, *place, n, parent_id=there[0])
                there.append(f"v{n}")
            case _:
                await _save(backend, *place, n)
                there.append(f"v{n}")


async def _list_expected(
    backend: Any, *thread_ids: str, before: str | None = None
) -> list[Version]:
    """Return all versions in the order of the list, from the histories of the namespaces."""
    found: list[Version] = []
    for thread_id in thread_ids:
        for namespace in await backend.namespaces(thread_id):
            history = partial(backend.history, thread_id, namespace=namespace, limit=100)
            try:
                found += await history(before=before)
            except NotFoundError:
                found += [it for it in await history() if it.checkpoint_id < (before or "")]
    return sorted(
        found, key=lambda it: (it.created_at, it.mark.line, it.mark.sequence), reverse=True
    )


@requires("list_threads", "list_with_metadata")
class Recency(BackendKit):
    """``list_threads`` and ``heads``: the most recently active first, in exact order."""

    async def list_in_order(self, backend: Any) -> list[str]:
        """Return the threads in the order that both lists, and pages of any size, agree on."""
        found: list[str] = await backend.list_threads()
        saved = [it for it in found if await backend.load(it) is not None]
        assert [it.thread_id for it in await backend.heads()] == saved
        for size in (1, 2):
            paged: list[str] = []
            while page := await backend.list_threads(size, after=paged[-1] if paged else None):
                paged += page
            assert paged == found
        return found

    async def save_threads(self, backend: Any, names: str) -> None:
        """Save threads one after the other."""
        for name in names:
            await backend.save(name, {"n": 1})

    async def test_the_thread_that_was_saved_last_is_listed_first(self, backend: Any) -> None:
        await self.save_threads(backend, "zamz")
        assert await self.list_in_order(backend) == ["z", "m", "a"]
        await self.save_threads(backend, "amzzma")
        assert await self.list_in_order(backend) == ["a", "m", "z"]

    async def test_a_list_forgets_known_threads_while_it_reads_others(self, backend: Any) -> None:
        await self.save_threads(backend, "zam")
        await backend.load("z")
        backend.limit_cache(1)
        assert await self.list_in_order(backend) == ["m", "a", "z"]

    async def test_a_save_in_any_namespace_is_activity(self, backend: Any) -> None:
        await self.save_threads(backend, "zam")
        await backend.write_state("z", {"n": 1}, namespace="sub")
        assert await self.list_in_order(backend) == ["z", "m", "a"]
        await backend.write_state("a", {"n": 1}, namespace="sub")
        await backend.write_state("z", {"n": 2}, namespace="sub")
        assert await self.list_in_order(backend) == ["z", "a", "m"]

    async def test_a_side_branch_is_activity(self, backend: Any) -> None:
        await backend.save("z", {"n": 0}, checkpoint_id="v0")
        await self.save_threads(backend, "zam")
        await backend.write_state(
            "z", {"n": 2}, parent_id="v0", forks=False, on_conflict="branch", checkpoint_id="side"
        )
        assert await self.list_in_order(backend) == ["z", "m", "a"]

    async def test_deletions_and_pending_writes_are_no_activity(self, backend: Any) -> None:
        for name in "zam":
            for n in range(3):
                await backend.save(name, {"n": n}, checkpoint_id=f"v{n}")
        await backend.delete("z", "v2")
        await backend.delete("a", "v0")
        if backend.capabilities.branching:
            await backend.put_writes("z", "v1", [make_write("a")])
            await backend.prune("a")
        assert await self.list_in_order(backend) == ["m", "a", "z"]

    @requires("list_threads", "list_with_metadata", "branching")
    async def test_a_copy_is_active_when_it_is_made(self, backend: Any) -> None:
        await self.save_threads(backend, "zam")
        await tick(StorageBackendAdapter(backend))
        await backend.copy_thread("z", "copy")
        assert await self.list_in_order(backend) == ["copy", "m", "a", "z"]
        await tick(StorageBackendAdapter(backend))
        await self.save_threads(backend, "a")
        assert await self.list_in_order(backend) == ["a", "copy", "m", "z"]

    @requires("list_threads", "list_with_metadata", "branching")
    async def test_a_thread_that_is_written_as_it_was_keeps_its_place(self, backend: Any) -> None:
        for name in "zam":
            await self.save_threads(backend, name)
            await tick(StorageBackendAdapter(backend))
        for name in "zam":
            await rewrite(backend, name, lambda it: it)
            assert await self.list_in_order(backend) == ["m", "a", "z"]

    async def test_a_repeated_save_is_activity(self, backend: Any) -> None:
        for name in "zamz":
            await backend.save(name, {"n": 1}, checkpoint_id="v")
        assert await self.list_in_order(backend) == ["z", "m", "a"]
        assert [it.checkpoint_id for it in await backend.history("z")] == ["v"]

    async def test_deleting_all_versions_of_a_namespace_is_no_activity(self, backend: Any) -> None:
        await self.save_threads(backend, "zam")
        for name in "az":
            await backend.write_state(name, {"n": 1}, namespace="sub", checkpoint_id="v")
        for name in "za":
            assert await backend.remove(name, ["v"], namespace="sub") == 1
            assert await self.list_in_order(backend) == ["z", "a", "m"]
        await self.save_threads(backend, "ma")
        assert await self.list_in_order(backend) == ["a", "m", "z"]

    @requires("list_threads", "list_with_metadata", "branching")
    async def test_a_thread_of_messages_is_listed_by_the_newest_one(self, backend: Any) -> None:
        await self.save_threads(backend, "zam")
        for days in (8, 10):
            await backend.write_thread(make_logged_thread(f"{days} days", days))
        for namespace in ("", "sub"):
            await backend.write_state("m", {"n": 2}, namespace=namespace, checkpoint_id="v")
        messages = [make_message(1, 11), make_message(2, 9)]
        for name in "zm":
            await rewrite(backend, name, lambda it: replace(it, messages=messages))
        assert await self.list_in_order(backend) == ["m", "a", "z", "8 days", "10 days"]
        for name, namespace in (("z", ""), ("m", ""), ("m", "sub")):
            ids = [it.checkpoint_id for it in await backend.history(name, namespace=namespace)]
            await backend.remove(name, ids, namespace=namespace)
        found = await self.list_in_order(backend)
        assert found[:2] + found[4:] == ["a", "8 days", "10 days"]
        assert sorted(found[2:4]) == ["m", "z"]
        await backend.save("z", {"n": 1})
        assert (await self.list_in_order(backend))[0] == "z"

    @requires("list_threads", "list_with_metadata", "branching")
    async def test_a_copy_of_messages_is_listed_by_the_newest_one(self, backend: Any) -> None:
        for days in (8, 9, 10):
            await backend.write_thread(make_logged_thread(f"{days} days", days))
        await self.save_threads(backend, "a")
        assert await backend.copy_thread("9 days", "copy") is True
        found = await self.list_in_order(backend)
        assert found[:2] + found[4:] == ["a", "8 days", "10 days"]
        assert sorted(found[2:4]) == ["9 days", "copy"]
