"""The Locus SDK's methods of a backend, which exist beside our own."""

from __future__ import annotations

from typing import Any

import pytest

from locus_store.errors import InvalidArgumentError
from locus_store.testing.kit import needs
from locus_store.testing.steps import BackendKit


class LocusSpellings(BackendKit):
    """``query_by_metadata``, ``search_data`` and ``count``."""

    async def test_metadata_finds_threads_by_their_newest_version(self, backend: Any) -> None:
        needs(backend, "metadata_query")
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

    async def test_metadata_finds_a_thread_behind_many_older_versions(self, backend: Any) -> None:
        needs(backend, "metadata_query")
        await backend.save("old", {"n": 0}, metadata={"k": 1})
        for n in range(10):
            await backend.save("busy", {"n": n}, metadata={"k": 1})
        await backend.save("busy", {"n": 10}, metadata={"k": 2})
        found = await backend.query_by_metadata("k", 1, limit=1)
        assert [it["thread_id"] for it in found] == ["old"]

    async def test_data_finds_threads_by_their_newest_state(self, backend: Any) -> None:
        needs(backend, "list_threads")
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

    async def test_count_takes_a_pattern_of_like(self, backend: Any) -> None:
        needs(backend, "list_threads")
        for thread_id in ("user-1", "user-2", "user-10", "a*c", "abc", "a[b]c", "a?c"):
            await backend.save(thread_id, {"n": 1})
        assert await backend.count() == 7
        assert await backend.count("user-%") == 3
        assert await backend.count("user-_") == 2
        for literal in ("a*c", "a[b]c", "a?c", "abc"):
            assert await backend.count(literal) == 1
        assert await backend.count("nobody%") == 0
