"""Deleted, hidden, old and expired versions."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy
from itertools import permutations
from typing import Any

import pytest

from locus_store.errors import (
    BackendError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from locus_store.testing.kit import Another, Kit, StorageProbe, expect_invalid, requires, seam, tick


@seam("layout", "search")
class Deleting(Kit):
    """A deleted version no longer exists, and every other one is unchanged."""

    async def test_deleting_the_head_shows_its_parent(self, checkpointer: Any, other: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        assert await checkpointer.delete("t", three) is True
        await checkpointer.close()
        for reader in (checkpointer, other):
            assert await self.read_texts(reader, "t") == ["a", "b"]
            assert await reader.load("t", three) is None
            assert await self.read_all_texts(reader, "t") == {two: ["a", "b"], one: ["a"]}

    async def test_whatever_is_deleted_the_others_stay_exact(self, checkpointer: Any) -> None:
        for order in permutations(range(4)):
            name = f"t{order}"
            ids = await self.grow(checkpointer, name, "a", "b", "c", "d")
            left = {it: list("abcd")[: place + 1] for place, it in enumerate(ids)}
            for place in order:
                assert await checkpointer.delete(name, ids[place]) is True
                del left[ids[place]]
                assert await self.read_all_texts(checkpointer, name) == left, order
                newest = max(left.values(), default=None)
                assert await self.read_texts(checkpointer, name) == newest, order
            assert await checkpointer.exists(name) is False

    @pytest.mark.parametrize("seed", range(3))
    async def test_deletions_among_forks_change_no_other(
        self, checkpointer: Any, seed: int
    ) -> None:
        dice = random.Random(seed)  # noqa: S311  (test data)
        left: dict[str, list[str]] = {}
        for step in range(40):
            if left and dice.random() < 0.35:
                for name in dice.sample(sorted(left), min(len(left), dice.randint(1, 3))):
                    assert await checkpointer.delete("t", name) is True
                    del left[name]
            parent = dice.choice([None, *left])
            said = [*(left[parent] if parent else ["root"]), str(step)]
            state = self.new(*said)
            await checkpointer.save(state, "t", f"v{step}", parent_checkpoint_id=parent)
            left[f"v{step}"] = said
        assert await self.read_all_texts(checkpointer, "t") == left

    async def test_a_deletion_is_whether_there_was_something(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        assert await checkpointer.delete("t", "unknown") is False
        assert await checkpointer.delete("unknown") is False
        assert await checkpointer.delete("unknown", one) is False
        assert [await checkpointer.delete("t", one) for _ in range(2)] == [True, False]
        assert [await checkpointer.delete("t") for _ in range(2)] == [True, False]

    async def test_a_thread_that_another_object_deleted_is_not_there(
        self, checkpointer: Any, other: Any
    ) -> None:
        for whole in (True, False):
            (only,) = await self.grow(checkpointer, "t", "a")
            assert await other.delete("t") is True
            assert await checkpointer.delete("t", None if whole else only) is False

    async def test_one_of_two_deletions_finds_it(self, checkpointer: Any, other: Any) -> None:
        for n in range(10):
            await self.grow(checkpointer, f"t{n}", "a")
            await other.load(f"t{n}")
            deletions = (it.delete(f"t{n}") for it in (checkpointer, other))
            assert sorted(await asyncio.gather(*deletions)) == [False, True]

    async def test_no_deletion_is_taken_for_another(self, checkpointer: Any, other: Any) -> None:
        one, *_ = await self.grow(checkpointer, "t", "a", "b")
        await other.load("t")
        await checkpointer.delete("t", one)
        await checkpointer.save(self.new("a"), "t", one)
        assert await other.delete("t", one) is True
        assert await checkpointer.exists("t", one) is False

    async def test_the_last_version_takes_the_thread(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        (only,) = await self.grow(checkpointer, "t", "a")
        await checkpointer.delete("t", only)
        assert await checkpointer.exists("t") is False
        assert await checkpointer.load("t") is None
        if checkpointer.capabilities.list_threads:
            assert await checkpointer.list_threads() == []
        assert storage is None or storage.rows() == 0

    async def test_deleting_a_thread_touches_no_other(self, checkpointer: Any) -> None:
        names = ("a", "a/b", "a:b", "ab", "A", "a%", "a_", "a*")
        for name in names:
            await checkpointer.save(self.new(name), name, "v")
        assert await checkpointer.delete("a") is True
        assert [name for name in names if not await checkpointer.exists(name)] == ["a"]
        assert await checkpointer.delete("a%") is True
        assert await checkpointer.delete("a_") is True
        assert await self.read_texts(checkpointer, "ab") == ["ab"]

    async def test_an_agent_deletes_its_steps_after_its_final_save(self, checkpointer: Any) -> None:
        for turn in range(3):
            state, steps = await checkpointer.load("t") or self.new(), []
            for step in range(3):
                state = self.said(state, f"{turn}.{step}")
                steps.append(await checkpointer.save(state, "t", f"step {turn}.{step}"))
            await checkpointer.save(state, "t", f"final {turn}")
            for step_id in steps:
                assert await checkpointer.delete("t", step_id) is True
        said = [f"{turn}.{step}" for turn in range(3) for step in range(3)]
        assert await self.read_all_texts(checkpointer, "t") == {
            "final 2": said, "final 1": said[:6], "final 0": said[:3],
        }  # fmt: skip

    async def test_no_byte_of_a_deletion_remains(
        self, checkpointer: Any, below: StorageProbe
    ) -> None:
        await checkpointer.save(self.holding(KEPT), "t", "v0")
        for place, secret in enumerate(SECRETS):
            await checkpointer.save(self.holding([*KEPT, secret]), "t", f"v{place + 1}")
        await checkpointer.save(self.holding([*KEPT, "end"]), "t", "last")
        await checkpointer.save(self.holding(SECRETS), "other thread", metadata={"k": SECRETS[0]})
        for place in range(len(SECRETS)):
            await checkpointer.delete("t", f"v{place + 1}")
        await checkpointer.delete("other thread")
        await checkpointer.close()
        assert [it for it in SECRETS if below.holds(it)] == []
        assert self.held(await checkpointer.load("t")) == [*KEPT, "end"]
        assert self.held(await checkpointer.load("t", "v0")) == KEPT

    async def test_no_byte_of_a_replaced_state_remains(
        self, checkpointer: Any, below: StorageProbe
    ) -> None:
        for name, end in (("v0", "a"), ("v1", SECRETS[0]), ("v2", "b"), ("v1", "c")):
            await checkpointer.save(self.holding([*KEPT, end]), "t", name, {"k": end})
        await checkpointer.close()
        assert not below.holds(SECRETS[0])
        assert self.held(await checkpointer.load("t", "v2")) == [*KEPT, "b"]


KEPT = [f"line {n} of what is kept" for n in range(200)]
SECRETS = [f"{random.Random(n).getrandbits(512):x}" for n in range(5)]  # noqa: S311  (test data)
"""Incompressible, so that a byte of them in storage can be found."""


@seam("layout")
class Retention(Kit):
    """``keep_last`` and ``vacuum``."""

    @pytest.mark.parametrize("keep", [1, 3])
    async def test_keep_last_keeps_the_newest_versions_and_bounds_what_is_stored(
        self, another: Another, storage: StorageProbe | None, keep: int
    ) -> None:
        checkpointer, state = another(keep_last=keep), self.new()
        for step in range(130):
            state = self.said(state, f"{step}")
            await checkpointer.save(state, "t", f"v{step}")
            if step % 30 == 9:
                said = [*map(str, range(step + 1))]
                kept = {f"v{n}": said[: n + 1] for n in range(step, step - keep, -1)}
                assert await self.read_all_texts(another(), "t") == kept
                assert await checkpointer.load("t", "v0") is None
                assert await checkpointer.exists("t", "v0") is False
                assert await checkpointer.delete("t", "v0") is False
        assert storage is None or storage.rows() < 100

    async def test_keep_last_never_hides_the_head(self, another: Another) -> None:
        checkpointer, losing = another(keep_last=1), another(keep_last=1)
        await self.grow(checkpointer, "t", "a")
        mine = await losing.load("t")
        head = await checkpointer.save(self.said(await checkpointer.load("t"), "b"), "t")
        for step in range(80):
            mine = self.said(mine, str(step))
            await losing.save(mine, "t", on_conflict="branch")
        assert await self.read_texts(another(), "t") == ["a", "b"]
        assert head in await checkpointer.list_checkpoints("t")
        assert len(await checkpointer.list_checkpoints("t")) == 2

    async def test_a_hidden_version_never_comes_back(self, another: Another) -> None:
        checkpointer = another(keep_last=2)
        *_, shown, head = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        await checkpointer.delete("t", head)
        assert await checkpointer.list_checkpoints("t") == [shown]
        assert await self.read_texts(checkpointer, "t") == ["a", "b", "c"]
        await checkpointer.delete("t", shown)
        assert await checkpointer.list_checkpoints("t") == []
        assert await checkpointer.load("t") is None

    async def test_a_hidden_version_is_no_parent(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        old, head = await self.grow(checkpointer, "t", "a", "b")
        with pytest.raises(NotFoundError):
            await checkpointer.save(self.new("x"), "t", parent_checkpoint_id=old)
        assert await checkpointer.list_checkpoints("t") == [head]

    async def test_a_hidden_versions_id_may_be_used_again(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        for name, text in (("v1", "a"), ("v2", "b"), ("v1", "a")):
            await checkpointer.save(self.new(text), "t", name)
        assert await self.read_all_texts(checkpointer, "t") == {"v1": ["a"]}

    @pytest.mark.parametrize("texts", ["", "a"])
    async def test_a_save_that_was_hidden_before_its_repeat_is_known(
        self, another: Another, texts: str
    ) -> None:
        checkpointer, other = another(keep_last=1), another(keep_last=1)
        await self.grow(checkpointer, "t", *texts)
        state = self.said(await checkpointer.load("t") or self.new(), "b")
        unanswered = deepcopy(state)
        await checkpointer.save(state, "t", "v1")
        await other.save(self.said(await other.load("t"), "c"), "t", "v2")
        assert await checkpointer.save(unanswered, "t", "v1") == "v1"
        assert await self.read_all_texts(other, "t") == {"v2": [*texts, "b", "c"]}

    async def test_keep_last_does_not_conflict_with_who_loaded(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        await self.grow(checkpointer, "t", *"abc")
        state = self.said(await checkpointer.load("t"), "d")
        await checkpointer.save(state, "t")
        await checkpointer.save(self.said(state, "e"), "t")
        assert await self.read_texts(another(), "t") == list("abcde")

    async def test_keeping_nothing_is_refused(self, reopen: Another) -> None:
        bad = (0, -1, 1.5, "3", True)
        await expect_invalid(bad, lambda it: reopen(keep_last=it), match="keep_last")

    @requires("vacuum")
    async def test_vacuum_removes_a_thread_without_young_versions(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t1", "a", "b")
        await self.grow(checkpointer, "t2", "c")
        await tick(checkpointer)
        assert await checkpointer.vacuum(older_than_days=0) == 3
        assert await checkpointer.exists("t1") is False
        assert await checkpointer.load("t2") is None
        assert await checkpointer.vacuum(older_than_days=0) == 0

    @requires("vacuum")
    async def test_vacuum_leaves_what_is_young(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", "a", "b")
        for days in (30, 1, 0.5, 10_000, 1_000_000, float("inf")):
            assert await checkpointer.vacuum(older_than_days=days) == 0
        assert await checkpointer.vacuum() == 0
        assert await checkpointer.list_checkpoints("t") == ids[::-1]

    @requires("vacuum")
    async def test_vacuum_keeps_what_a_young_thread_needs(
        self, checkpointer: Any, other: Any, below: StorageProbe
    ) -> None:
        await self.grow(checkpointer, "old", "a", "b")
        await self.grow(checkpointer, "t", "a", "b")
        below.age(40 * 86_400)
        state = await checkpointer.load("t")
        below.age(0)
        young = await checkpointer.save(self.said(state, "c"), "t")
        assert await checkpointer.vacuum(older_than_days=41) == 0
        assert await checkpointer.vacuum(older_than_days=39) == 4
        assert await self.read_all_texts(other, "t") == {young: ["a", "b", "c"]}
        assert await checkpointer.exists("old") is False

    @requires("vacuum")
    async def test_vacuum_keeps_an_old_head_under_a_young_side_branch(
        self, checkpointer: Any, another: Another, below: StorageProbe
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        mine, other = await checkpointer.load("t"), another()
        await other.save(self.said(await other.load("t"), "head"), "t", "head")
        below.age(40 * 86_400)
        await checkpointer.save(self.said(mine, "side"), "t", "side", on_conflict="branch")
        assert await checkpointer.vacuum(older_than_days=39) == 1
        left = {it: ["a", it] for it in ("side", "head")}
        assert await self.read_all_texts(another(), "t") == left
        assert await self.read_texts(another(), "t") == ["a", "head"]

    @requires("vacuum")
    async def test_an_age_that_is_none_is_refused(self, checkpointer: Any) -> None:
        bad = (-1, -0.1, float("nan"), "30", None, True)
        await expect_invalid(bad, lambda it: checkpointer.vacuum(older_than_days=it), match="days")


@requires("ttl")
class Expiry(Kit):
    """Threads with a time to live."""

    async def expire_thread(self, another: Another) -> Any:
        """Return an object without a time to live, on storage with ``t`` expired and ``u`` live."""
        checkpointer, short = another(), another(ttl_seconds=0.000001)
        await another(ttl_seconds=3_600).save(self.new("word"), "u", "v", {"k": 1})
        await short.save(self.new("word"), "t", "v", {"k": 1})
        await tick(checkpointer)
        return checkpointer

    async def test_an_expired_thread_does_not_exist_for_any_call(self, another: Another) -> None:
        checkpointer = await self.expire_thread(another)
        for name in (None, "v"):
            assert await checkpointer.load("t", name) is None
            assert await checkpointer.exists("t", name) is False
        assert await checkpointer.list_checkpoints("t") == []
        assert await checkpointer.delete("t", "v") is False
        assert await self.read_texts(checkpointer, "u") == ["word"]
        await checkpointer.save(self.new("new"), "t")
        assert len(await checkpointer.list_checkpoints("t")) == 1
        assert await self.read_texts(another(), "t") == ["new"]

    async def test_an_expired_thread_is_in_no_list(self, another: Another) -> None:
        checkpointer = await self.expire_thread(another)
        listed = checkpointer.capabilities
        assert not listed.list_threads or await checkpointer.list_threads() == ["u"]
        answers = [await checkpointer.list_with_metadata()]
        if listed.metadata_query:
            answers.append(await checkpointer.query_by_metadata("k", 1))
            assert await checkpointer.get_metadata("t") is None
        if listed.search:
            answers.append(await checkpointer.search("word"))
        assert [[row["thread_id"] for row in rows] for rows in answers] == [["u"]] * len(answers)

    @requires("ttl", "branching")
    async def test_an_expired_thread_is_not_copied_nor_in_the_way(self, another: Another) -> None:
        checkpointer = await self.expire_thread(another)
        assert await checkpointer.copy_thread("t", "copy") is False
        assert await checkpointer.copy_thread("u", "t") is True
        assert await self.read_texts(checkpointer, "t") == ["word"]

    async def test_a_save_made_from_an_expired_thread_is_a_conflict(self, another: Another) -> None:
        checkpointer, short = another(), another(ttl_seconds=0.000001)
        await self.grow(checkpointer, "t", "a")
        mine = await checkpointer.load("t")
        await short.save(self.said(await short.load("t"), "b"), "t")
        await tick(another())
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert conflict.value.head_id is None
        await another().save(self.new("new"), "t")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")

    async def test_expire_removes_what_is_over_and_nothing_else(
        self, another: Another, storage: StorageProbe | None
    ) -> None:
        checkpointer = await self.expire_thread(another)
        await self.grow(checkpointer, "forever", "a")
        assert await checkpointer.expire() == 1
        assert await checkpointer.expire() == 0
        assert await self.read_texts(checkpointer, "u") == ["word"]
        assert await self.read_texts(checkpointer, "forever") == ["a"]
        assert storage is None or storage.rows() == 6

    async def test_a_save_may_have_a_time_to_live_of_its_own(self, another: Another) -> None:
        checkpointer = another(ttl_seconds=3_600)
        await checkpointer.save(self.new("a"), "short", ttl_seconds=0.000001)
        await checkpointer.save(self.new("a"), "long")
        await tick(another())
        assert await checkpointer.load("short") is None
        assert await self.read_texts(checkpointer, "long") == ["a"]
        await checkpointer.save(self.new("b"), "short")  # longer, and the other one shorter
        await checkpointer.save(self.new("b"), "long", ttl_seconds=0.000001)
        await tick(another())
        assert await self.read_texts(another(), "short") == ["b"]
        assert await checkpointer.load("long") is None

    @requires("ttl", "branching")
    async def test_a_save_without_a_time_to_live_leaves_the_threads_own(
        self, checkpointer: Any, backend: Any
    ) -> None:
        await checkpointer.save(self.new("a"), "t", ttl_seconds=3_600)
        at = await self.read_expiry(backend)
        await checkpointer.save(self.said(await checkpointer.load("t"), "b"), "t")
        assert await self.read_expiry(backend) == at

    @requires("ttl", "branching")
    async def test_the_time_to_live_of_one_of_two_saves_at_once_counts(self, backend: Any) -> None:
        await asyncio.gather(
            backend.write_state("t", {"n": 1}, namespace="a"),
            backend.write_state("t", {"n": 1}, namespace="b", ttl_seconds=3_600),
        )
        assert await self.read_expiry(backend) is not None

    async def read_expiry(self, backend: Any) -> Any:
        """Return the expiry of thread ``t``."""
        return (await backend.read_thread("t")).expires_at

    @requires("ttl", "branching")
    async def test_a_read_renews_a_time_to_live_with_refresh_on_read(
        self, backend: Any, another: Another
    ) -> None:
        await another(ttl_seconds=60).save(self.new("a"), "t")
        at = await self.read_expiry(backend)
        await another(ttl_seconds=3_600).load("t")
        assert await self.read_expiry(backend) == at
        renewing = another(ttl_seconds=3_600, refresh_on_read=True)
        assert await self.read_texts(renewing, "t") == ["a"]
        assert await renewing.load("missing") is None
        await renewing.renewals()
        renewed = await self.read_expiry(backend)
        assert (renewed - at).total_seconds() > 3_400
        for _ in range(20):
            await renewing.load("t")
        await renewing.renewals()
        assert await self.read_expiry(backend) == renewed

    async def test_a_read_never_fails_with_the_renewal(
        self, backend: Any, another: Another, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_: Any) -> bool:
            raise BackendError("the database is read-only")

        renewing = another(ttl_seconds=60, refresh_on_read=True)
        await renewing.save(self.new("a"), "t")
        monkeypatch.setattr(renewing.backend, "renew", refuse)
        assert await self.read_texts(renewing, "t") == ["a"]

    async def test_renewing_without_a_time_to_live_is_refused(self, reopen: Another) -> None:
        with pytest.raises(InvalidArgumentError, match="ttl_seconds"):
            reopen(refresh_on_read=True)
        with pytest.raises(InvalidArgumentError, match="refresh_on_read"):
            reopen(ttl_seconds=60, refresh_on_read="yes")

    @requires()
    async def test_a_time_to_live_that_is_none_is_refused(self, reopen: Another) -> None:
        bad = (0, -1, float("nan"), float("inf"), "60", True)
        await expect_invalid(bad, lambda it: reopen(ttl_seconds=it), match="ttl_seconds")

    @requires()
    async def test_an_undeclared_time_to_live_is_refused(
        self, checkpointer: Any, reopen: Another
    ) -> None:
        if checkpointer.capabilities.ttl:
            pytest.skip("declared")
        with pytest.raises(UnsupportedError, match="ttl"):
            reopen(ttl_seconds=60)
