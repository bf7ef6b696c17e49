"""Loads that follow saves of the same event loop."""

from __future__ import annotations

import asyncio

import pytest

from locus_store import MemoryBackend, MemoryCheckpointer, StorageBackendAdapter, open_checkpointer
from locus_store.runtime import background

pytestmark = pytest.mark.anyio


async def test_a_load_waits_for_a_save_through_another_object(monkeypatch) -> None:
    backend, may_end = MemoryBackend(), asyncio.Event()
    writing, write_state = asyncio.Event(), backend.write_state

    async def slow(*args, **kwargs):
        writing.set()
        await may_end.wait()
        return await write_state(*args, **kwargs)

    monkeypatch.setattr(backend, "write_state", slow)
    first, second = (StorageBackendAdapter(backend, state_type=dict) for _ in range(2))
    save = asyncio.create_task(first.save({"n": 1}, "t"))
    await writing.wait()
    load = asyncio.create_task(second.load("t"))
    assert await second.load("other") is None
    assert await MemoryCheckpointer().load("t") is None  # of another storage
    assert not load.done()
    may_end.set()
    assert await load == {"n": 1}
    await save
    assert not background._saves.get()


async def test_a_load_does_not_wait_for_a_save_of_another_tenant(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 3600)
    async with open_checkpointer(f"sqlite:///{tmp_path}/t.db") as checkpointer:
        one, other = (checkpointer.for_tenant(it) for it in ("one", "other"))
        writing, may_end, write_state = asyncio.Event(), asyncio.Event(), one.backend.write_state

        async def slow(*args, **kwargs):
            writing.set()
            await may_end.wait()
            return await write_state(*args, **kwargs)

        monkeypatch.setattr(one.backend, "write_state", slow)
        save = asyncio.create_task(one.save({"n": 1}, "t"))
        await writing.wait()
        assert await asyncio.wait_for(other.load("t"), 60) is None
        assert not save.done()
        may_end.set()
        await save


async def test_a_load_does_not_wait_for_a_save_that_hangs(monkeypatch) -> None:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 0)
    checkpointer = MemoryCheckpointer()

    async def hang(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(checkpointer.backend, "write_state", hang)
    save = asyncio.create_task(checkpointer.save({"n": 1}, "t"))
    await asyncio.sleep(0)
    assert await checkpointer.load("t") is None
    save.cancel()
    with pytest.raises(asyncio.CancelledError):
        await save
    assert not background._saves.get()
