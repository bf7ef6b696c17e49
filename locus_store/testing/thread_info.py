"""Facts of threads, deletion by metadata, and the Locus SDK's spellings of methods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from locus_store.errors import (
    ConflictError,
    InvalidArgumentError,
    NotOwnerError,
    SerializationError,
    UnsupportedError,
)
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    INVALID_OPTIONAL_IDS,
    exact,
    expect_invalid,
    refused,
    requires,
    seam,
)
from locus_store.testing.steps import BackendKit, find_problems, make_write
from locus_store.types import Expected
from locus_store.types.thread_info import RESERVED_KEY, DescribesThreads, claim_of

LONG_AGO = datetime(2024, 10, 1, 12, 30, tzinfo=UTC)


@requires(DescribesThreads)
class ThreadInfoRules(BackendKit):
    """``put_thread``, ``claim_thread``, ``thread_facts``, ``threads_by_activity``."""

    async def list_ids(self, backend: Any, user_id: str | None = None, **options: Any) -> list[str]:
        return [it.thread_id for it in await backend.threads_by_activity(user_id, **options)]

    async def read_facts(self, backend: Any, thread_id: str = "t") -> tuple[Any, ...]:
        """Return a thread's user, name, metadata and run."""
        found = await backend.thread_facts(thread_id)
        return found.user_id, found.name, found.metadata, found.run_id

    async def test_all_facts_come_back(self, backend: Any) -> None:
        metadata = {"tags": ["weather", "ünï"], "n": 1, "f": 1.0, "none": None, "": {"a": [0.1]}}
        await backend.put_thread(
            "t", user_id="alice", name="Weather", metadata=metadata, run_id="r", updated_at=LONG_AGO
        )
        found = await backend.thread_facts("t")
        assert (found.thread_id, found.user_id, found.name) == ("t", "alice", "Weather")
        assert (found.run_id, found.updated_at) == ("r", LONG_AGO)
        assert exact(found.metadata) == exact(metadata)
        found.metadata["tags"].append("mine")
        assert exact((await backend.thread_facts("t")).metadata) == exact(metadata)

    async def test_a_thread_without_facts_has_its_id_and_time(self, backend: Any) -> None:
        assert await backend.thread_facts("t") is None
        await backend.save("t", {"n": 1})
        assert await self.read_facts(backend) == (None, None, {}, None)
        found = await backend.thread_facts("t")
        assert found.updated_at == (await backend.recent())[0].active_at

    async def test_a_put_replaces_all_facts_but_the_user(self, backend: Any) -> None:
        await backend.put_thread("t", user_id="alice", name="n", metadata={"k": 1}, run_id="r")
        await backend.put_thread("t", metadata={"l": 2})
        assert await self.read_facts(backend) == ("alice", None, {"l": 2}, None)

    async def test_a_thread_of_facts_only_exists_and_can_be_deleted(self, backend: Any) -> None:
        await backend.put_thread("t", metadata={"k": 1})
        assert await self.read_facts(backend) == (None, None, {"k": 1}, None)
        assert await backend.exists("t") is True
        assert await backend.load("t") is None
        if backend.capabilities.list_threads:
            assert await backend.list_threads() == ["t"]
        assert await backend.delete("t") is True
        assert await backend.thread_facts("t") is None
        assert await self.list_ids(backend) == []

    async def test_the_time_of_a_new_thread_is_exact(self, backend: Any) -> None:
        await backend.put_thread("t", user_id="alice")
        created = (await backend.thread_facts("t")).updated_at
        assert created != created.replace(second=0, microsecond=0)
        await backend.put_thread("t", name="n", metadata={"k": 1})
        found = await backend.thread_facts("t")
        assert (found.updated_at, found.metadata) == (created, {"k": 1})
        await backend.save("t", {"n": 1})
        assert (await backend.thread_facts("t")).updated_at > created

    async def test_a_given_time_holds_until_the_next_save(self, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        later = datetime.now(UTC) + timedelta(days=2)
        for given in (LONG_AGO, later):
            await backend.put_thread("t", updated_at=given)
            assert (await backend.thread_facts("t")).updated_at == given
        await backend.save("t", {"n": 2})
        saved_at = (await backend.recent())[0].active_at
        assert (await backend.thread_facts("t")).updated_at == saved_at
        assert saved_at != later

    @requires(DescribesThreads, "branching")
    async def test_a_put_leaves_versions_and_writes_as_they_are(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="a")
        await backend.put_writes("t", "a", [make_write("a")])
        before = await backend.read_thread("t")
        await backend.put_thread("t", user_id="alice", name="n", metadata={"k": 1})
        await backend.save("t", {"n": 2}, checkpoint_id="b")
        found = await backend.read_thread("t")
        assert (found.user_id, found.name, found.metadata) == ("alice", "n", {"k": 1})
        assert found.lines[0].records[:1] == before.lines[0].records
        assert await backend.load("t") == {"n": 2}
        assert await find_problems(backend) == []

    async def test_a_thread_is_its_first_users(self, backend: Any) -> None:
        await backend.put_thread("t", user_id="alice", name="hers")
        for put in (backend.put_thread, backend.claim_thread):
            with pytest.raises(NotOwnerError, match="'t'"):
                await put("t", user_id="bob", name="his")
        assert await backend.thread_facts("t", user_id="bob") is None
        assert (await backend.thread_facts("t", user_id="alice")).name == "hers"
        assert (await backend.thread_facts("t")).user_id == "alice"
        assert isinstance(NotOwnerError("…"), PermissionError)

    async def test_a_claim_keeps_what_is_stored(self, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        await backend.claim_thread("t", "alice", name="first", metadata={"k": 1})
        await backend.claim_thread("t", "alice", name="second", metadata={"k": 2})
        assert await self.read_facts(backend) == ("alice", "first", {"k": 1}, None)
        await backend.put_thread("u", name="named", metadata={"k": 1})
        await backend.claim_thread("u", "alice", name="other", metadata={"k": 2})
        assert await self.read_facts(backend, "u") == ("alice", "named", {"k": 1}, None)
        await backend.put_thread("run", run_id="r")
        await backend.claim_thread("run", "alice", metadata={"topic": 1})
        assert await self.read_facts(backend, "run") == ("alice", None, {"topic": 1}, "r")

    async def test_of_two_first_users_one_gets_the_thread(self, backend: Any) -> None:
        claims = (backend.claim_thread("t", f"user {n}") for n in range(8))
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(it is None for it in results) == 1
        assert sum(isinstance(it, NotOwnerError) for it in results) == 7
        owner = (await backend.thread_facts("t")).user_id
        assert results[int(owner.split()[1])] is None

    async def test_a_save_claims_its_thread_in_the_same_transaction(self, backend: Any) -> None:
        claim = claim_of("t", "alice", name="n", metadata={"k": 1})
        await backend.write_state("t", {"n": 1}, claim=claim)
        assert await self.read_facts(backend) == ("alice", "n", {"k": 1}, None)
        again = claim_of("t", "alice", name="other")
        await backend.write_state("t", {"n": 2}, claim=again)
        assert (await backend.thread_facts("t")).name == "n"
        assert len(await backend.history("t")) == 2
        assert await self.list_ids(backend, "alice") == ["t"]
        assert await find_problems(backend) == []

    async def test_a_claim_of_a_save_keeps_hostile_facts(self, backend: Any) -> None:
        for name in HOSTILE_IDS:
            claim = claim_of(name, name, name=name, metadata={name: [name, 1.0, -0.0, None]})
            await backend.write_state(name, {"n": 1}, claim=claim)
        for name in HOSTILE_IDS:
            [found] = await backend.threads_by_activity(name)
            assert (found.thread_id, found.user_id, found.name) == (name, name, name)
            assert exact(found.metadata) == exact({name: [name, 1.0, -0.0, None]})

    async def test_of_two_first_saves_by_two_users_one_is_written(self, backend: Any) -> None:
        saves = (
            backend.write_state("t", {"n": n}, claim=claim_of("t", f"user {n}")) for n in range(8)
        )
        results = await asyncio.gather(*saves, return_exceptions=True)
        won = [n for n, it in enumerate(results) if not isinstance(it, BaseException)]
        assert len(won) == 1, results
        assert sum(isinstance(it, NotOwnerError) for it in results) == 7, results
        assert (await backend.thread_facts("t")).user_id == f"user {won[0]}"
        assert await backend.load("t") == {"n": won[0]}
        assert len(await backend.history("t")) == 1

    async def test_a_refused_save_writes_neither_version_nor_claim(self, backend: Any) -> None:
        await backend.claim_thread("t", "alice")
        await backend.save("t", {"n": 1})
        none = Expected(made_from=None, head=None)
        for expected in (None, none):
            with pytest.raises(NotOwnerError):
                await backend.write_state(
                    "t", {"n": 2}, expected=expected, claim=claim_of("t", "bob", name="his")
                )
        await backend.save("free", {"n": 1})
        with pytest.raises(ConflictError):
            await backend.write_state(
                "free", {"n": 2}, expected=none, claim=claim_of("free", "bob")
            )
        assert (await backend.thread_facts("t")).user_id == "alice"
        assert (await backend.thread_facts("free")).user_id is None
        for thread_id in ("t", "free"):
            assert await backend.load(thread_id) == {"n": 1}

    async def test_cleared_versions_leave_the_rest_of_the_thread(self, backend: Any) -> None:
        await backend.put_thread("t", user_id="alice", name="n")
        for n in range(12):
            await backend.save("t", {"n": n})
        await backend.write_state("t", {"n": 0}, namespace="sub")
        await backend.save("u", {"n": 1})
        for _ in range(2):
            await backend.clear_versions("t")
            assert await backend.load("t") is None
            assert await backend.history("t") == []
            assert len(await backend.history("t", namespace="sub")) == 1
            assert (await backend.thread_facts("t")).name == "n"
        await backend.clear_versions("u")
        assert await backend.exists("u") is False
        await backend.clear_versions("absent")
        assert await backend.exists("absent") is False
        await backend.save("t", {"n": 13})
        assert await backend.load("t") == {"n": 13}
        assert await find_problems(backend) == []

    async def test_a_deleted_threads_user_is_forgotten(self, backend: Any) -> None:
        await backend.claim_thread("t", "alice")
        await backend.delete("t")
        await backend.claim_thread("t", "bob")
        assert await self.list_ids(backend, "alice") == []
        assert await self.list_ids(backend, "bob") == ["t"]

    async def test_lists_are_a_users_by_activity(self, backend: Any) -> None:
        for name in "zam":
            await backend.claim_thread(name, "alice")
            await backend.save(name, {"n": 1})
            await backend.claim_thread(f"{name}{name}", "bob")
        await backend.save("free", {"n": 1})
        await backend.save("z", {"n": 2})
        assert await self.list_ids(backend, "alice") == ["z", "m", "a"]
        assert sorted(await self.list_ids(backend, "bob")) == ["aa", "mm", "zz"]
        assert sorted(await self.list_ids(backend)) == ["a", "aa", "free", "m", "mm", "z", "zz"]
        assert await self.list_ids(backend, "carol") == []
        await backend.put_thread("a", user_id="alice", name="no activity")
        assert await self.list_ids(backend, "alice") == ["z", "m", "a"]

    async def test_pages_lose_and_repeat_none(self, backend: Any) -> None:
        for n in range(25):
            await backend.claim_thread(f"t{n:02}", "alice")
            await backend.save(f"t{n:02}", {"n": n})
        whole = [f"t{n:02}" for n in reversed(range(25))]
        assert await self.list_ids(backend, "alice") == whole
        for size in (1, 7, 25):
            pages = [
                await self.list_ids(backend, "alice", offset=at, limit=size)
                for at in range(0, 26, size)
            ]
            assert [it for page in pages for it in page] == whole
        assert await self.list_ids(backend, "alice", limit=0) == []
        assert await self.list_ids(backend, "alice", offset=30) == []

    async def test_a_search_looks_into_names_and_metadata(self, backend: Any) -> None:
        await backend.put_thread("name", user_id="u", name="Über 100% of CAFÉ_s")
        await backend.put_thread("deep", user_id="u", metadata={"a": [{"b": "it's a café\nbar"}]})
        await backend.put_thread("field", user_id="u", metadata={"café": "no", "n": 100})
        await backend.put_thread("run", user_id="u", run_id="café", updated_at=LONG_AGO)
        await backend.put_thread("other", user_id="v", name="café")
        expected = {
            "cafe": ["deep", "name"], "CAFÉ": ["deep", "name"], "0%": ["name"], "É_S": ["name"],
            "it's": ["deep"], "É\nb": ["deep"], "%": ["name"], "2024": [], "": [
                "deep", "field", "name", "run",
            ],
        }  # fmt: skip
        for search, ids in expected.items():
            assert sorted(await self.list_ids(backend, "u", search=search)) == ids, search
        assert len(await self.list_ids(backend, "u", search="cafe", limit=1)) == 1
        assert len(await self.list_ids(backend, "u", search="cafe", offset=1)) == 1
        assert sorted(await self.list_ids(backend, search="cafe")) == ["deep", "name", "other"]

    async def test_a_search_goes_through_many_pages(self, backend: Any) -> None:
        for n in range(230):
            await backend.put_thread(f"t{n:03}", user_id="u", name="odd" if n % 2 else "even")
        found = await self.list_ids(backend, "u", search="odd", limit=1000)
        assert sorted(found) == [f"t{n:03}" for n in range(1, 230, 2)]
        page = await self.list_ids(backend, "u", search="odd", offset=110, limit=3)
        assert page == found[110:113]

    @requires(DescribesThreads, "branching")
    async def test_facts_travel_with_the_thread(self, backend: Any) -> None:
        put = {"user_id": "alice", "name": "n", "metadata": {"k": 1}, "run_id": "r"}
        await backend.put_thread("t", **put, updated_at=LONG_AGO)
        before = await backend.thread_facts("t")
        thread = await backend.read_thread("t")
        await backend.delete("t")
        await backend.write_thread(thread)
        assert await backend.thread_facts("t") == before
        await backend.copy_thread("t", "copy")
        assert (await backend.thread_facts("copy")).metadata == {"k": 1}
        assert sorted(await backend.threads_of("alice")) == ["copy", "t"]
        assert (await backend.forget_user("alice"))["threads"] == 2

    async def test_hostile_ids_name_threads_and_users_of_their_own(self, backend: Any) -> None:
        for name in HOSTILE_IDS:
            await backend.put_thread(name, user_id=name, name=name)
        for name in HOSTILE_IDS:
            found = await backend.threads_by_activity(name)
            assert [(it.thread_id, it.user_id, it.name) for it in found] == [(name, name, name)]

    async def test_what_cannot_be_stored_is_refused(self, backend: Any) -> None:
        await expect_invalid(INVALID_IDS, backend.put_thread, partial(backend.claim_thread, "t"))
        await expect_invalid(
            INVALID_OPTIONAL_IDS,
            lambda it: backend.put_thread("t", user_id=it),
            lambda it: backend.put_thread("t", run_id=it),
        )
        facts: list[dict[str, Any]] = [
            {"name": "x" * 1001}, {"name": "\0"}, {"updated_at": datetime(2024, 1, 1)},  # noqa: DTZ001
            {"updated_at": "2024"}, {"metadata": {RESERVED_KEY: 1}},
        ]  # fmt: skip
        await expect_invalid(facts, lambda it: backend.put_thread("t", **it))
        bad: list[dict[str, Any]] = [{"limit": -1}, {"offset": -1}, {"search": 7}, {"user_id": ""}]
        await expect_invalid(bad, lambda it: backend.threads_by_activity(**it))
        with refused(SerializationError, "NaN"):
            await backend.put_thread("t", metadata={"n": float("nan")})
        assert await backend.exists("t") is False


@seam("layout")
@requires("branching", "metadata_query")
class Forgetting(BackendKit):
    """Threads are found and removed by any metadata."""

    @pytest.mark.parametrize(
        ("key", "value", "metadata", "other"),
        [
            ("org.name", "acme", {"org": {"name": "acme"}}, {"org": {"name": "x"}, "n": "acme"}),
            ("user_id", "u", {"user_id": "u"}, {"user_id": "U"}),
        ],
    )
    async def test_threads_are_forgotten_by_their_user_or_any_metadata(
        self, backend: Any, key: str, value: str, metadata: Any, other: Any
    ) -> None:
        await backend.save("by metadata", {"n": 1}, metadata=metadata)
        await backend.save("by metadata", {"n": 2})
        await backend.write_state("by label", {"n": 1}, labels=metadata)
        await backend.write_state("by namespace", {"n": 1}, namespace="sub", metadata=metadata)
        for n in range(3):
            told = metadata if n == 0 else None
            await backend.write_state("by hidden", {"n": n}, metadata=told, keep_last=1)
        await backend.put_writes("by label", "v", [make_write("a")])
        await backend.save("other", {"n": 1}, metadata=other)
        is_user = key == "user_id"
        found = await (backend.threads_of(value) if is_user else backend.threads_where(key, value))
        assert sorted(found) == ["by hidden", "by label", "by metadata", "by namespace"]
        forget = backend.forget_user if is_user else partial(backend.forget_where, key)
        counts = await forget(value)
        assert (counts["threads"], counts["checkpoints"], counts["writes"]) == (4, 7, 1)
        assert await backend.scan() == ["other"]
        assert set((await forget(value)).values()) == {0}
        assert await find_problems(backend) == []

    async def test_values_keep_their_types(self, backend: Any) -> None:
        values = {"number": 7, "text": "7", "list": [1, 7], "true": True, "null": None, "one": 1}
        for name, value in values.items():
            await backend.save(name, {}, metadata={"k": value})
        await backend.save("none", {}, metadata={"other": 7})
        for value, names in (
            (7, ["list", "number"]), ("7", ["text"]), (True, ["true"]), (None, ["null"]),
            (1.0, ["list", "one"]),
        ):  # fmt: skip
            assert sorted(await backend.threads_where("k", value)) == names
        assert (await backend.forget_where("k", 7.0))["threads"] == 2
        assert await backend.scan() == ["none", "null", "one", "text", "true"]

    async def test_a_condition_that_makes_no_sense_is_refused(self, backend: Any) -> None:
        await backend.save("t", {}, metadata={"tags": ["a"]})
        bad = ("", None, 7, "\ud800")
        await expect_invalid(bad, lambda it: backend.forget_where(it, 1), match="key")
        with refused(InvalidArgumentError, [], match="empty list"):
            await backend.forget_where("tags", [])
        with refused(SerializationError, object()):
            await backend.forget_where("tags", object())
        assert await backend.scan() == ["t"]

    @requires()
    async def test_without_metadata_queries_it_is_refused(self, backend: Any) -> None:
        if backend.capabilities.metadata_query:
            pytest.skip("declared")
        with pytest.raises(UnsupportedError, match="metadata_query"):
            await backend.forget_where("k", 1)


class LocusSpellings(BackendKit):
    """``query_by_metadata``, ``search_data`` and ``count``."""

    @requires("metadata_query")
    async def test_metadata_finds_threads_by_their_newest_version(self, backend: Any) -> None:
        await backend.save("a", {"n": 1}, metadata={"stage": "asked"})
        await backend.save("b", {"n": 2}, metadata={"stage": "asked"})
        for n in range(3):
            await backend.save("a", {"n": 3 + n}, metadata={"stage": "booked"})
        found = await backend.query_by_metadata("stage", "asked")
        assert [(it["thread_id"], it["data"]) for it in found] == [("b", {"n": 2})]
        assert isinstance(found[0]["updated_at"], str)
        booked = await backend.query_by_metadata("stage", "booked", limit=1)
        assert [(it["thread_id"], it["data"]) for it in booked] == [("a", {"n": 5})]
        assert await backend.query_by_metadata("stage", "nowhere") == []
        assert await backend.query_by_metadata("stage", "booked", limit=0) == []

    @requires("metadata_query")
    async def test_metadata_finds_a_thread_behind_many_older_versions(self, backend: Any) -> None:
        await backend.save("old", {"n": 0}, metadata={"k": 1})
        for n in range(10):
            await backend.save("busy", {"n": n}, metadata={"k": 1})
        await backend.save("busy", {"n": 10}, metadata={"k": 2})
        found = await backend.query_by_metadata("k", 1, limit=1)
        assert [it["thread_id"] for it in found] == ["old"]

    @requires("list_threads")
    async def test_data_finds_threads_by_their_newest_state(self, backend: Any) -> None:
        await backend.save("a", {"agent_id": "x", "tags": ["p", "q"], "deep": {"n": 1}})
        await backend.save("b", {"agent_id": "y"})
        await backend.save("b", {"agent_id": "x"})
        found = await backend.search_data("agent_id", "x")
        assert sorted(it["thread_id"] for it in found) == ["a", "b"]
        assert [it["thread_id"] for it in await backend.search_data("tags", ["q"])] == ["a"]
        assert [it["thread_id"] for it in await backend.search_data("deep.n", 1)] == ["a"]
        assert await backend.search_data("agent_id", "y") == []
        assert len(await backend.search_data("agent_id", "x", limit=1)) == 1
        assert await backend.search_data("agent_id", "x", limit=0) == []
        with pytest.raises(InvalidArgumentError, match="key"):
            await backend.search_data("", 1)

    @requires("list_threads")
    async def test_count_takes_a_pattern_of_like(self, backend: Any) -> None:
        for thread_id in ("user-1", "user-2", "user-10", "a*c", "abc", "a[b]c", "a?c"):
            await backend.save(thread_id, {"n": 1})
        assert await backend.count() == 7
        assert await backend.count("user-%") == 3
        assert await backend.count("user-_") == 2
        for literal in ("a*c", "a[b]c", "a?c", "abc"):
            assert await backend.count(literal) == 1
        assert await backend.count("nobody%") == 0
