"""Tenants of one storage, by objects from ``for_tenant``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from locus_store.errors import ConflictError, QuotaError, UnsupportedError
from locus_store.testing.kit import (
    INVALID_IDS,
    NS,
    Another,
    Kit,
    StoreKit,
    expect_invalid,
    put_over,
    requires,
    seam,
    tick,
)
from locus_store.testing.steps import make_write
from locus_store.types.tenants import Quota

NAMES = (
    *("a", "A", "a:b", "%", "*", "'", "a\u0301", "\u00e1", "日本語", " ", "null"),
    *("x" * 64, "/" * 64, "日" * 64),
)
"""Names that some database could take for one another."""


@requires("tenants")
class Tenants(Kit):
    """``for_tenant`` and ``tenants`` of a checkpointer."""

    async def list_tenants(self, checkpointer: Any) -> list[tuple[str, int]]:
        """Return the tenants with their numbers of threads."""
        return [(it.name, it.threads) for it in await checkpointer.tenants()]

    async def test_a_tenant_sees_its_own_threads_only(self, checkpointer: Any) -> None:
        tenants = {name: checkpointer.for_tenant(name) for name in NAMES}
        for name, tenant in tenants.items():
            await tenant.save(self.new(f"of {name}"), "t", "v", {"k": 1})
        for name, tenant in tenants.items():
            assert await self.read_texts(tenant, "t") == [f"of {name}"]
            assert await tenant.list_threads() == ["t"]
            assert len(await tenant.query_by_metadata("k", 1)) == 1
            assert len(await tenant.search("of")) == 1
        assert await tenants["a"].delete("t") is True
        assert await tenants["a"].exists("t") is False
        assert await self.read_texts(tenants["A"], "t") == ["of A"]
        assert await checkpointer.exists("t") is False

    async def test_a_tenant_gets_no_contents_of_another_one(self, checkpointer: Any) -> None:
        acme, globex = (checkpointer.for_tenant(it).backend for it in ("acme", "globex"))
        await acme.write_state("t", {"n": 1}, checkpoint_id="v")
        await acme.put_writes("t", "v", [make_write("task")])
        await globex.write_state("t", {"n": 2}, checkpoint_id="v")
        versions = await acme.history("t")
        assert [len(it.records) for it in await acme.contents(versions)] == [1]
        assert await globex.contents(versions) == []

    async def test_an_object_of_the_same_tenant_sees_the_same(self, checkpointer: Any) -> None:
        first, second = checkpointer.for_tenant("acme"), checkpointer.for_tenant("acme")
        state = await first.load("t")
        await first.save(self.new("a") if state is None else state, "t")
        await second.save(self.said(await second.load("t"), "b"), "t")
        assert await self.read_texts(first, "t") == ["a", "b"]
        assert await self.read_texts(first.for_tenant("acme"), "t") == ["a", "b"]

    async def test_a_tenants_object_keeps_the_options(self, another: Another) -> None:
        checkpointer = another(keep_last=2, on_conflict="branch")
        acme = checkpointer.for_tenant("acme")
        ids = await self.grow(acme, "t", "a", "b", "c")
        assert await acme.list_checkpoints("t") == ids[:0:-1]
        mine, theirs = await acme.load("t"), await acme.load("t")
        await acme.save(self.said(theirs, "d"), "t")
        await acme.save(self.said(mine, "lost"), "t")
        assert await self.read_texts(acme, "t") == ["a", "b", "c", "d"]

    async def test_a_load_of_one_tenant_is_no_basis_in_another(self, checkpointer: Any) -> None:
        acme, globex = map(checkpointer.for_tenant, ("acme", "globex"))
        await self.grow(acme, "t", "a")
        await self.grow(globex, "t", "g", "h")
        foreign = await acme.load("t")
        with pytest.raises(ConflictError):
            await globex.save(self.said(foreign, "b"), "t")
        assert await self.read_texts(globex, "t") == ["g", "h"]
        assert await self.read_texts(acme, "t") == ["a"]

    async def test_closing_one_object_leaves_the_others_open(self, checkpointer: Any) -> None:
        acme, globex = map(checkpointer.for_tenant, ("acme", "globex"))
        for tenant in (acme, globex, checkpointer):
            await self.grow(tenant, "t", "a")
        said = ["a"]
        for closed in (acme, acme, checkpointer):
            await closed.close()
            for tenant in (globex, checkpointer, acme):
                assert await self.read_texts(tenant, "t") == said
                await tenant.save(self.said(await tenant.load("t"), "b"), "t")
            said.append("b")

    async def test_many_tenants_at_once_lose_nothing(self, checkpointer: Any) -> None:
        tenants = [checkpointer.for_tenant(f"tenant {n}") for n in range(12)]
        await asyncio.gather(*(self.grow(it, "t", "a", "b", "c") for it in tenants))
        for tenant in tenants:
            assert await self.read_texts(tenant, "t") == ["a", "b", "c"]
        expected = sorted((f"tenant {n}", 1) for n in range(12))
        assert await self.list_tenants(checkpointer) == expected

    async def test_tenants_are_listed_by_name_with_what_they_have(self, checkpointer: Any) -> None:
        assert await checkpointer.tenants() == []
        for name in ("b", "a", "A", "日本語"):
            for thread in range(1 + (name == "a")):
                await checkpointer.for_tenant(name).save(self.new("x"), f"t{thread}")
        await checkpointer.for_tenant("left").save(self.new("x"), "t")
        await checkpointer.for_tenant("left").delete("t")
        wanted = [("A", 1), ("a", 2), ("b", 1), ("日本語", 1)]
        assert await self.list_tenants(checkpointer) == wanted
        assert await self.list_tenants(checkpointer.for_tenant("b")) == wanted

    @requires("tenants", "vacuum")
    async def test_vacuum_removes_of_its_own_tenant_only(self, checkpointer: Any) -> None:
        for name in ("acme", "globex"):
            await checkpointer.for_tenant(name).save(self.new("x"), "t")
        assert await checkpointer.vacuum(0) == 0
        assert await checkpointer.for_tenant("acme").vacuum(0) == 1
        assert await self.list_tenants(checkpointer) == [("globex", 1)]

    @requires("tenants", "ttl")
    async def test_expire_removes_of_its_own_tenant_only(self, another: Another) -> None:
        checkpointer = another(ttl_seconds=0.000001)
        acme, globex = map(checkpointer.for_tenant, ("acme", "globex"))
        for tenant in (acme, globex):
            await tenant.save(self.new("x"), "t")
        await tick(another().for_tenant("acme"))
        assert await self.list_tenants(checkpointer) == [("acme", 0), ("globex", 0)]
        assert await checkpointer.expire() == 0
        assert await acme.expire() == 1
        assert await self.list_tenants(checkpointer) == [("globex", 0)]
        assert await globex.expire() == 1

    async def test_what_is_no_tenant_is_refused(self, checkpointer: Any) -> None:
        bad = (*INVALID_IDS, "x" * 65, "日" * 65)
        await expect_invalid(bad, checkpointer.for_tenant, match="tenant")


FULL = Quota(threads=0, bytes=0, saves_per_minute=0)


def make_text() -> str:
    """Return 4 KB of text that no storage compresses to less than half."""
    return os.urandom(2048).hex()


MOST = 15
"""Calls after which a quota should have refused one."""


async def repeat(call: Callable[[int], Awaitable[Any]]) -> tuple[int, QuotaError]:
    """Repeat a call until a quota refuses it; return how many were not refused."""
    for number in range(MOST):
        try:
            await call(number)
        except QuotaError as error:
            return number, error
    pytest.fail(f"{MOST} calls were not refused")


@requires("quotas")
class Quotas(Kit):
    """``get_quota`` and ``set_quota`` of a checkpointer."""

    async def limit(self, checkpointer: Any, **limits: int) -> Any:
        """Return the object of a tenant with a quota."""
        acme = checkpointer.for_tenant("acme")
        await acme.set_quota(Quota(**limits))
        return acme

    async def test_a_thread_above_the_quota_is_refused(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, threads=2)
        for thread in ("a", "b"):
            await acme.save(self.new("x"), thread)
        with pytest.raises(QuotaError, match="2 of 2 threads") as caught:
            await acme.save(self.new("x"), "c")
        error = caught.value
        assert (error.tenant, error.quota, error.limit, error.used) == ("acme", "threads", 2, 2)
        assert error.retry_after_seconds is None
        assert await acme.exists("c") is False
        await checkpointer.for_tenant("globex").save(self.new("x"), "c")

    async def test_existing_threads_grow_when_there_may_be_no_more(
        self, checkpointer: Any, other: Any
    ) -> None:
        acme = await self.limit(checkpointer, threads=1)
        await self.grow(acme, "t", "a", "b")
        await other.for_tenant("acme").save(self.new("c"), "t")
        await acme.backend.write_state("t", {"n": 1}, namespace="sub")
        assert await self.read_texts(acme, "t") == ["c"]

    async def test_a_deletion_makes_room(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, threads=1)
        for thread in ("a", "b", "c"):
            await acme.save(self.new("x"), thread)
            with pytest.raises(QuotaError):
                await acme.save(self.new("x"), "d")
            await acme.delete(thread)
        assert (await acme.get_quota()).threads == 0

    async def test_bytes_above_the_quota_are_refused(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, bytes=20_000)
        kept, error = await repeat(lambda n: acme.save(self.new(make_text()), f"t{n}"))
        assert (error.quota, error.limit, kept) == ("bytes", 20_000, len(await acme.list_threads()))
        assert 3 <= kept < MOST
        assert 2000 * kept < (await acme.get_quota()).bytes <= 20_000
        await acme.delete("t0")
        await acme.save(self.new("x"), "small")

    async def test_pending_writes_count(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, bytes=5_000)
        await acme.save(self.new("x"), "t", "v")
        write = replace(make_write("task"), payload=os.urandom(6_000))
        with pytest.raises(QuotaError):
            await acme.backend.put_writes("t", "v", [write])
        assert await acme.backend.get_writes("t", "v") == []

    async def test_a_copy_counts(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, bytes=8_000)
        await acme.save(self.new(make_text()), "t")
        copies, _ = await repeat(lambda n: acme.copy_thread("t", f"copy {n}"))
        assert 1 <= copies < MOST
        assert (await acme.get_quota()).bytes <= 8_000

    async def test_the_saves_of_a_minute_are_limited(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, saves_per_minute=3)
        saved, error = await repeat(lambda _: acme.save(self.new("x"), "t"))
        assert 3 <= saved <= 6  # of two minutes
        assert (error.quota, error.used) == ("saves_per_minute", 3)
        assert error.retry_after_seconds in range(1, 61)

    async def test_objects_at_once_keep_to_one_quota(
        self, checkpointer: Any, another: Another
    ) -> None:
        acme = await self.limit(checkpointer, threads=7)
        objects = [acme, another().for_tenant("acme"), another().for_tenant("acme")]
        saves = [
            one.save(self.new("x"), f"t{at}-{n}")
            for at, one in enumerate(objects)
            for n in range(6)
        ]
        results = await asyncio.gather(*saves, return_exceptions=True)
        refused = [one for one in results if isinstance(one, QuotaError)]
        assert len(await acme.list_threads()) == len(results) - len(refused) == 7

    async def test_a_call_that_fails_uses_nothing(self, checkpointer: Any) -> None:
        acme = await self.limit(checkpointer, saves_per_minute=3)
        await acme.save(self.new("x"), "t")
        for _ in range(7):
            with pytest.raises(ConflictError):
                await acme.copy_thread("t", "t")
        await acme.save(self.new("x"), "t")

    async def test_a_full_tenant_may_read_and_delete(self, checkpointer: Any) -> None:
        acme = checkpointer.for_tenant("acme")
        await self.grow(acme, "t", "a", "b")
        await acme.set_quota(FULL)
        with pytest.raises(QuotaError):
            await acme.save(self.said(await acme.load("t"), "c"), "t")
        assert await self.read_texts(acme, "t") == ["a", "b"]
        assert await acme.vacuum(0) == 2
        assert await acme.delete("t") is False

    async def test_a_removed_quota_limits_nothing(self, checkpointer: Any) -> None:
        acme = checkpointer.for_tenant("acme")
        await acme.set_quota(FULL)
        await acme.set_quota(Quota(threads=5))
        assert (await acme.get_quota()).quota == Quota(threads=5)
        await acme.set_quota(Quota())
        await acme.save(self.new("x"), "t")
        use = await acme.get_quota()
        assert (use.quota, use.threads, use.saves) == (Quota(), 1, 0)

    @requires()
    async def test_limits_that_are_no_counts_are_refused(self) -> None:
        await expect_invalid((-1, 1.5, "1", True), lambda it: Quota(threads=it), match="threads")


@seam("loop", "layout")
@requires("tenants")
class StoreTenants(StoreKit):
    """``for_tenant`` of a store."""

    @requires()
    async def test_a_store_without_tenants_refuses(self, store: Any) -> None:
        if store.capabilities.tenants:
            pytest.skip(f"{type(store).__name__} declares tenants")
        with pytest.raises(UnsupportedError, match="tenants"):
            store.for_tenant("acme")

    async def test_a_tenant_sees_its_own_items_only(self, store: Any) -> None:
        acme, globex = map(store.for_tenant, ("acme", "globex"))
        for tenant_store, text in ((acme, "a"), (globex, "g")):
            await tenant_store.put_with_embedding(NS, "k", text, [1.0, 0.0, 0.0])
        assert (await acme.get(NS, "k"), await globex.get(NS, "k")) == ("a", "g")
        found = await acme.search_by_embedding(NS, [1.0, 0.0, 0.0])
        assert [it.item.value for it in found] == ["a"]
        assert await store.get(NS, "k") is None
        assert await acme.clear_namespace(NS) == 1
        assert await globex.get(NS, "k") == "g"

    async def test_closing_a_tenants_store_leaves_the_others_open(self, store: Any) -> None:
        acme = store.for_tenant("acme")
        await acme.put(NS, "k", 1)
        await acme.close()
        await store.put(NS, "k", 2)
        assert (await acme.get(NS, "k"), await store.get(NS, "k")) == (1, 2)

    async def test_expire_removes_of_its_own_tenants_items_only(self, store: Any) -> None:
        acme, globex = map(store.for_tenant, ("acme", "globex"))
        for tenant_store in (acme, globex):
            await put_over(tenant_store, NS, "k")
        assert await store.expire() == 0
        assert await acme.expire() == 1
        assert await globex.expire() == 1
