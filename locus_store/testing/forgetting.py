"""Deletion by metadata: ``threads_where`` and ``forget_where``."""

from __future__ import annotations

from typing import Any

import pytest

from locus_store.errors import InvalidArgumentError, SerializationError, UnsupportedError
from locus_store.testing.kit import needs, refused, seam
from locus_store.testing.steps import BackendKit, problems
from locus_store.types import PendingWrite


@seam("layout")
class Forgetting(BackendKit):
    """Threads are found and removed by any metadata."""

    async def test_threads_are_forgotten_by_any_metadata(self, backend: Any) -> None:
        needs(backend, "branching", "metadata_query")
        told = {"org": {"name": "acme"}}
        await backend.save("by metadata", {"n": 1}, metadata=told)
        await backend.save("by metadata", {"n": 2})
        await backend.write_state("by label", {"n": 1}, labels=told)
        await backend.write_state("by namespace", {"n": 1}, namespace="sub", metadata=told)
        for n in range(3):
            metadata = told if n == 0 else None
            await backend.write_state("by hidden", {"n": n}, metadata=metadata, keep_last=1)
        await backend.put_writes("by label", "v", [PendingWrite("a", 0, "c", "t", b"1")])
        await backend.save("other", {"n": 1}, metadata={"org": {"name": "globex"}, "n": "acme"})
        theirs = ["by hidden", "by label", "by metadata", "by namespace"]
        assert sorted(await backend.threads_where("org.name", "acme")) == theirs
        counts = await backend.forget_where("org.name", "acme")
        assert (counts["threads"], counts["writes"]) == (4, 1)
        assert await backend.scan() == ["other"]
        assert await problems(backend) == []
        assert set((await backend.forget_where("org.name", "acme")).values()) == {0}

    async def test_values_keep_their_types(self, backend: Any) -> None:
        needs(backend, "branching", "metadata_query")
        values = {"number": 7, "text": "7", "list": [1, 7], "true": True, "null": None, "one": 1}
        for name, value in values.items():
            await backend.save(name, {}, metadata={"k": value})
        await backend.save("none", {}, metadata={"other": 7})
        assert sorted(await backend.threads_where("k", 7)) == ["list", "number"]
        assert sorted(await backend.threads_where("k", "7")) == ["text"]
        assert sorted(await backend.threads_where("k", True)) == ["true"]
        assert sorted(await backend.threads_where("k", None)) == ["null"]
        assert sorted(await backend.threads_where("k", 1.0)) == ["list", "one"]
        assert (await backend.forget_where("k", 7.0))["threads"] == 2
        assert await backend.scan() == ["none", "null", "one", "text", "true"]

    async def test_a_condition_that_makes_no_sense_is_refused(self, backend: Any) -> None:
        needs(backend, "branching", "metadata_query")
        await backend.save("t", {}, metadata={"tags": ["a"]})
        for key in ("", None, 7, "\ud800"):
            with refused(InvalidArgumentError, key, match="key"):
                await backend.forget_where(key, 1)
        with refused(InvalidArgumentError, [], match="empty list"):
            await backend.forget_where("tags", [])
        with refused(SerializationError, object()):
            await backend.forget_where("tags", object())
        assert await backend.scan() == ["t"]

    async def test_without_metadata_queries_it_is_refused(self, backend: Any) -> None:
        if backend.capabilities.metadata_query:
            pytest.skip("declared")
        with pytest.raises(UnsupportedError, match="metadata_query"):
            await backend.forget_where("k", 1)
