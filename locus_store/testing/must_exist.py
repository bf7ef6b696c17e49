"""Saves and pending writes that need their thread or checkpoint to be stored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from locus_store.errors import ConflictError
from locus_store.testing.kit import needs, seam
from locus_store.testing.steps import BackendKit, written
from locus_store.types.thread_info import DescribesThreads

SEEN: list[list[tuple[str, int]] | None] = [None, []]


@seam("connection")
class MustExist(BackendKit):
    """``put_writes(must_exist=…)`` and ``write_state(thread_must_exist=True)``."""

    async def test_writes_of_a_checkpoint_that_must_exist_are_refused_after_its_deletion(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        for seen in SEEN:
            await backend.save("t", {"n": 1}, checkpoint_id="v")
            await backend.save("t", {"n": 2}, checkpoint_id="w")
            options: dict[str, Any] = {"seen": seen, "must_exist": "checkpoint"}
            assert await backend.put_writes("t", "v", [written("a")], **options)
            await backend.delete("t", "v")
            with pytest.raises(ConflictError, match="gone"):
                await backend.put_writes("t", "v", [written("a")], **options)
            await backend.delete("t")
            for namespace in ("", "below"):
                with pytest.raises(ConflictError, match="gone"):
                    await backend.put_writes(
                        "t", "w", [written("a")], namespace=namespace, **options
                    )
            assert await backend.scan() == []

    async def test_writes_whose_thread_must_exist_may_come_before_their_checkpoint(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        for number, seen in enumerate(SEEN):
            for namespace in ("", "below"):
                options: dict[str, Any] = {"namespace": namespace, "seen": seen}
                name = f"next {number}"
                writes = [written("a")]
                assert await backend.put_writes("t", name, writes, must_exist="thread", **options)
                assert await backend.get_writes("t", name, namespace=namespace) == writes

    async def test_writes_whose_thread_must_exist_are_refused_without_it(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.delete("t")
        for seen in SEEN:
            for namespace in ("", "below"):
                options: dict[str, Any] = {"namespace": namespace, "seen": seen}
                with pytest.raises(ConflictError, match="deleted"):
                    await backend.put_writes(
                        "t", "w", [written("a")], must_exist="thread", **options
                    )
        assert await backend.scan() == []

    async def test_a_save_whose_thread_must_exist_is_refused_without_it(self, backend: Any) -> None:
        for options in ({}, {"is_root": True}, {"ttl_seconds": 60}, {"keep_last": 1}):
            if "ttl_seconds" in options:
                needs(backend, "ttl")
            with pytest.raises(ConflictError, match="deleted"):
                await below(backend, **options)
            await backend.save("t", {"n": 1})
            await below(backend, **options)
            await below(backend, "second", **options)
            await backend.delete("t")
            with pytest.raises(ConflictError, match="deleted"):
                await below(backend, **options)
            assert await backend.exists("t") is False
            if backend.capabilities.list_threads:
                assert await backend.scan() == []

    async def test_a_thread_of_nothing_but_writes_does_not_exist(self, backend: Any) -> None:
        needs(backend, "branching")
        for namespace in ("", "below"):
            await backend.put_writes("t", "v", [written("a")], namespace=namespace)
        for namespace in ("", "below", "other"):
            with pytest.raises(ConflictError, match="deleted"):
                await below(backend, namespace=namespace)
            for seen in (None, [("a", 0)]):
                with pytest.raises(ConflictError, match="deleted"):
                    await backend.put_writes(
                        *("t", "v", [written("b")]),
                        namespace=namespace,
                        seen=seen,
                        must_exist="thread",
                    )
        assert await backend.exists("t") is False
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await below(backend)
        assert await backend.get_writes("t", "v") == [written("a")]

    async def test_a_thread_that_has_only_a_name_exists(self, backend: Any) -> None:
        needs(backend, "branching")
        if isinstance(backend, DescribesThreads):
            await backend.put_thread("t", name="Weather")
        else:
            await backend.save("t", {"n": 1})
            thread = await backend.read_thread("t")
            await backend.delete("t")
            await backend.write_thread(replace(thread, name="Weather", lines=[]))
        assert await backend.put_writes("t", "v", [written("a")], must_exist="thread")
        await below(backend)
        assert await backend.namespaces("t") == ["below"]

    async def test_a_deletion_among_saves_and_writes_leaves_nothing(self, backend: Any) -> None:
        needs(backend, "branching")
        for number in range(8):
            await backend.save("t", {"n": 1}, checkpoint_id="v")
            late = [below(backend, namespace=f"n{it}") for it in range(3)]
            late += [
                backend.put_writes(
                    "t", "w", [written("a")], namespace=f"n{it}", must_exist="thread"
                )
                for it in range(3)
            ]
            calls = [*late[:number], backend.delete("t"), *late[number:]]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            failed = [it for it in answers if isinstance(it, BaseException)]
            assert [it for it in failed if not isinstance(it, ConflictError)] == []
            assert await backend.scan() == []


async def below(
    backend: Any, checkpoint_id: str = "first", *, namespace: str = "below", **options: Any
) -> None:
    """Save a version of a namespace of thread ``t``, which must exist."""
    await backend.write_state(
        *("t", {"said": checkpoint_id}),
        namespace=namespace,
        checkpoint_id=checkpoint_id,
        thread_must_exist=True,
        **options,
    )
