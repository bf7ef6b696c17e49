"""Versions, their parents, and loads by an object that knows an older version."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from locus_store.backend import StorageBackend
from locus_store.backends.memory.backend import MemoryCheckpointer
from locus_store.errors import ConflictError, IntegrityError, NotFoundError
from locus_store.testing.kit import (
    INVALID_LIMITS,
    Kit,
    StorageProbe,
    exact,
    expect_invalid,
    limit_backend,
    requires,
    seam,
)
from locus_store.testing.steps import BackendKit
from locus_store.types import Mark, Version
from locus_store.values.encoding import MAX_STATE_BYTES


class HistoryRules(Kit):
    """Lists of versions, their limits and cursors."""

    async def test_a_limit_that_is_no_count_is_refused(self, checkpointer: Any) -> None:
        calls = _list_limited_calls(checkpointer)
        await expect_invalid(INVALID_LIMITS, *calls, match="limit")

    async def test_a_limit_of_zero_lists_nothing(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("word"), "t", metadata={"k": 1})
        for call in _list_limited_calls(checkpointer):
            assert await call(0) == []

    async def test_250_versions_are_listed_through_pages_of_100(self, checkpointer: Any) -> None:
        ids = [await checkpointer.save({"n": n}, "t", f"v{n}") for n in range(250)]
        pages: list[list[str]] = [await checkpointer.list_checkpoints("t", limit=100)]
        while pages[-1]:
            after = pages[-1][-1]
            pages.append(await checkpointer.list_checkpoints("t", limit=100, after=after))
        assert [it for page in pages for it in page] == ids[::-1]
        assert [len(page) for page in pages] == [100, 100, 50, 0]
        assert await checkpointer.list_checkpoints("t", limit=1000) == ids[::-1]

    async def test_a_cursor_that_is_gone_is_told(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        with pytest.raises(NotFoundError, match="gone"):
            await checkpointer.list_checkpoints("t", after="gone")

    async def test_1100_versions_are_deleted(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        for hundred in range(0, 1_100, 100):
            numbers = range(hundred, hundred + 100)
            await asyncio.gather(*(checkpointer.save({"n": n}, "t", f"v{n}") for n in numbers))
        assert len(await checkpointer.list_checkpoints("t", limit=2_000)) == 1_100
        assert await checkpointer.delete("t") is True
        assert await checkpointer.load("t") is None
        assert await checkpointer.exists("t", "v7") is False
        assert await checkpointer.list_checkpoints("t", limit=2_000) == []
        if storage is not None:
            assert storage.rows() == 0
        await checkpointer.save(self.new("new"), "t", "v7")
        assert await checkpointer.list_checkpoints("t", limit=2_000) == ["v7"]


def _list_limited_calls(checkpointer: Any) -> list[Callable[[Any], Awaitable[Any]]]:
    """Return every declared operation that takes a limit."""
    declared = checkpointer.capabilities
    calls = {
        "list_threads": lambda limit: checkpointer.list_threads(limit=limit),
        "list_with_metadata": lambda limit: checkpointer.list_with_metadata(limit=limit),
        "metadata_query": lambda limit: checkpointer.query_by_metadata("k", 1, limit=limit),
        "search": lambda limit: checkpointer.search("word", limit=limit),
    }
    listed = [call for name, call in calls.items() if getattr(declared, name)]
    return [lambda limit: checkpointer.list_checkpoints("t", limit=limit), *listed]


@seam("state")
class LineageRules(Kit):
    """Saves after a load: own work, rewinds, forks, repeats and replaced ids."""

    @pytest.mark.parametrize("first", ["a", ""])
    async def test_one_load_may_be_saved_repeatedly(self, checkpointer: Any, first: str) -> None:
        await self.grow(checkpointer, "t", *first)
        state = await checkpointer.load("t") or self.new()
        for text in "bcde":
            state = self.said(state, text)
            await checkpointer.save(state, "t")
        assert await self.read_texts(checkpointer, "t") == list(f"{first}bcde")
        assert len(await checkpointer.list_checkpoints("t")) == len(f"{first}bcde")

    async def test_a_named_parent_makes_a_fork_the_head(self, checkpointer: Any) -> None:
        one, two = await self.grow(checkpointer, "t", "a", "b")
        fork = await checkpointer.save(self.new("x"), "t", parent_checkpoint_id=one)
        assert await self.read_texts(checkpointer, "t") == ["x"]
        assert await checkpointer.list_checkpoints("t") == [fork, two, one]
        await checkpointer.delete("t", fork)
        assert await self.read_texts(checkpointer, "t") == ["a"]

    async def test_a_named_parent_is_no_conflict(self, checkpointer: Any, other: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        mine = await checkpointer.load("t")
        await other.save(self.said(await other.load("t"), "theirs"), "t")
        await checkpointer.save(self.said(mine, "mine"), "t", parent_checkpoint_id=one)
        assert await self.read_texts(other, "t") == ["a", "b", "mine"]

    async def test_a_parent_that_is_not_there_is_told(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", "a")
        for thread_id in ("t", "no thread"):
            with pytest.raises(NotFoundError, match="gone"):
                await checkpointer.save(self.new("x"), thread_id, parent_checkpoint_id="gone")
        assert await checkpointer.list_checkpoints("t") == ids
        assert await checkpointer.exists("no thread") is False

    async def test_a_rewind_becomes_the_head_and_goes_on(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        state, versions = await checkpointer.load("t", one), {one: "a", two: "ab", three: "abc"}
        for text in "xyz":
            state = self.said(state, text)
            versions[await checkpointer.save(state, "t")] = "".join(self.texts(state))
            assert await self.read_texts(checkpointer, "t") == self.texts(state)
        told = await self.read_all_texts(checkpointer, "t")
        assert [*told.items()] == [(it, list(said)) for it, said in [*versions.items()][::-1]]

    async def test_a_rewind_behind_a_new_head_fails(self, checkpointer: Any, other: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        old = await checkpointer.load("t", one)
        theirs = await other.save(self.said(await other.load("t"), "c"), "t")
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.said(old, "x"), "t")
        assert (conflict.value.head_id, conflict.value.parent_id) == (theirs, one)

    async def test_the_same_save_again_is_the_same_version(
        self, checkpointer: Any, other: Any
    ) -> None:
        """Also below a new head."""
        state = self.new("a")
        for _ in range(3):
            assert await checkpointer.save(state, "t", "v1", {"k": 1}) == "v1"
        assert await checkpointer.list_checkpoints("t") == ["v1"]
        theirs = await other.save(self.said(await other.load("t"), "b"), "t")
        assert await checkpointer.save(state, "t", "v1", {"k": 1}) == "v1"
        assert await self.read_texts(other, "t") == ["a", "b"]
        assert await other.list_checkpoints("t") == [theirs, "v1"]

    @requires("metadata_query")
    async def test_the_same_id_with_other_metadata_replaces(self, checkpointer: Any) -> None:
        state = self.new("a")
        await checkpointer.save(state, "t", "v1", {"k": 1})
        await checkpointer.save(state, "t", "v1", {"k": 2})
        assert await checkpointer.get_metadata("t", "v1") == {"k": 2}
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    async def test_a_replaced_version_leaves_the_others_exact(self, checkpointer: Any) -> None:
        for replaced in ("v0", "v1", "v2"):
            name, state = f"t{replaced}", self.new()
            for place, text in enumerate("abc"):
                state = self.said(state, text)
                await checkpointer.save(state, name, f"v{place}")
            await checkpointer.save(self.new("new"), name, replaced)
            versions = {"v0": ["a"], "v1": ["a", "b"], "v2": ["a", "b", "c"], replaced: ["new"]}
            assert await self.read_all_texts(checkpointer, name) == versions
            assert (await checkpointer.list_checkpoints(name))[0] == replaced
            assert await self.read_texts(checkpointer, name) == ["new"]

    async def test_a_loaded_state_may_be_saved_as_another_thread(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        state = await checkpointer.load("t")
        await checkpointer.save(self.said(state, "fork"), "fork")
        await checkpointer.save(self.said(state, "b"), "t")
        assert await self.read_texts(checkpointer, "fork") == ["a", "fork"]
        assert await self.read_texts(checkpointer, "t") == ["a", "b"]

    async def test_a_state_of_another_store_may_be_saved(self, checkpointer: Any) -> None:
        elsewhere = MemoryCheckpointer(state_type=self.state_type)
        await elsewhere.save(self.new("elsewhere"), "t")
        await self.grow(checkpointer, "t", "a")
        state = self.said(await elsewhere.load("t"), "b")
        await checkpointer.save(state, "t")
        await checkpointer.save(state, "new")
        assert await self.read_texts(checkpointer, "t") == ["elsewhere", "b"]
        await elsewhere.save(self.said(await checkpointer.load("t"), "c"), "t")
        assert await self.read_texts(elsewhere, "t") == ["elsewhere", "b", "c"]


SAID = [f"{n} " + secrets.token_hex(250) for n in range(60)]
"""30 KB: a tail of it is far smaller than the whole."""


class _Reader:
    """A second object on the storage of a backend, with what it knows of thread ``t``."""

    def __init__(self, backend: Any) -> None:
        self.backend = limit_backend(backend, MAX_STATE_BYTES)
        self.known: Mark | None = None

    async def read(self) -> Any:
        """Load the thread, and compare it with a load by an object that knows nothing."""
        found = await self.backend.read_state("t")
        fresh = await limit_backend(self.backend, MAX_STATE_BYTES).read_state("t")
        assert (found and exact(found.state)) == (fresh and exact(fresh.state))
        self.known = found and found.version.mark
        return found and found.state

    async def read_tail(self) -> Any:
        """Return the ``Stored`` that the storage sends for the head."""
        stored = await self.backend.fetch_head("t", known=self.known)
        if type(self.backend).fetch_head is StorageBackend.fetch_head:
            pytest.skip(f"{type(self.backend).__name__} reads heads whole")
        return stored


async def save_lists(backend: Any, *counts: int) -> list[Version]:
    """Save thread ``t`` with so many strings each; return its versions, newest first."""
    for count in counts:
        await backend.write_state("t", {"said": SAID[:count]})
    versions: list[Version] = await backend.history("t", limit=1_000)
    return versions


@seam("layout")
class Tails(BackendKit):
    """A process that knows an older version reads only what was saved since."""

    @pytest.fixture
    async def reader(self, backend: Any) -> _Reader:
        """An object that knows the first version, of 50 strings."""
        await save_lists(backend, 50)
        reader = _Reader(backend)
        assert await reader.read() == {"said": SAID[:50]}
        return reader

    async def test_only_what_was_saved_since_is_read(self, backend: Any, reader: _Reader) -> None:
        tail = await reader.read_tail()
        assert (tail.basis, tail.payloads) == (reader.known, [])
        await save_lists(backend, 51, 52, 53)
        tail = await reader.read_tail()
        assert tail.basis == reader.known
        assert 0 < sum(map(len, tail.payloads)) < 2_000
        assert await reader.read() == {"said": SAID[:53]}
        tail = await reader.read_tail()
        assert (tail.basis, tail.payloads) == (reader.known, [])

    async def test_a_known_version_that_is_gone_is_not_built_upon(
        self, backend: Any, reader: _Reader
    ) -> None:
        """Above the head, and below it."""
        newest, first = await save_lists(backend, 51)
        await reader.read()
        await backend.remove("t", [newest.checkpoint_id])
        assert (await reader.read_tail()).basis is None
        assert await reader.read() == {"said": SAID[:50]}
        await save_lists(backend, 51, 52)
        await backend.remove("t", [first.checkpoint_id])
        assert (await reader.read_tail()).basis is None
        assert await reader.read() == {"said": SAID[:52]}

    async def test_a_state_that_was_too_large_between_is_read(self, backend: Any) -> None:
        await save_lists(backend, 5)
        behind, fresh = limit_backend(backend, 30_000), limit_backend(backend, 30_000)
        await behind.read_state("t")
        for count in (30, 55, 80):  # 40 KB at last
            await backend.write_state("t", {"said": [*SAID, *SAID][:count]})
        last = {"said": [*SAID[:30], *(it[::-1] for it in SAID[:20])]}
        await backend.write_state("t", last)
        for reader in (fresh, behind):
            assert (await reader.read_state("t")).state == last

    async def test_a_tail_counts_for_max_state_bytes(self, backend: Any, reader: _Reader) -> None:
        await save_lists(backend, 60)
        small = limit_backend(backend, 28_000)
        small._known = reader.backend._known  # noqa: SLF001  (it knows 25 KB)
        with pytest.raises(IntegrityError, match="max_state_bytes=28000"):
            await small.read_state("t")

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_history_is_read_as_by_an_object_that_knows_nothing(
        self, backend: Any, reader: _Reader, seed: int
    ) -> None:
        """Versions are removed, replaced, forked and hidden, and the thread is deleted."""
        dice, said = random.Random(seed), list(SAID[:50])  # noqa: S311  (a test)
        for step in range(40):
            versions = await backend.history("t", limit=1_000)
            one = dice.choice(versions).checkpoint_id if versions else None
            options: dict[str, Any] = {}
            match dice.randrange(9):
                case 0 if len(versions) > 1:
                    await backend.remove("t", [dice.choice([one, versions[0].checkpoint_id])])
                    await reader.read()
                case 1:
                    said = said[: dice.randrange(50)]
                case 2 if one:
                    options = {"parent_id": one}
                case 3:
                    options = {"keep_last": dice.randrange(1, 5)}
                case 4 if one:
                    options = {"checkpoint_id": one}
                case 5 if dice.random() < 0.5:
                    await backend.remove("t")
                    assert await reader.read() is None
                case _:
                    said += [f"{step}"] * dice.randrange(3)
            await backend.write_state("t", {"said": said, "step": step}, **options)
            if dice.random() < 0.4:
                await reader.read()
        await reader.read()
