"""One object for each storage gives every contract over the same connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store import NewMessage, UnsupportedError
from locus_store.open import Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import storages


@pytest.mark.anyio
class TestStorage:
    """On every storage of the table."""

    contract = "backend"

    @pytest.fixture
    async def storage(self, place: storages.Storage) -> AsyncIterator[Storage]:
        async with Storage(place.backend(), keep_last=2) as made:
            yield made

    async def test_a_saver_reads_what_a_checkpointer_saved(self, storage: Storage) -> None:
        checkpointer, saver = storage.checkpointer(state_type=dict), storage.saver()
        assert checkpointer.backend is saver.backend is storage.backend
        saved = [await checkpointer.save({"n": n}, "t") for n in range(3)]
        found: Any = await saver.get(thread_id="t")
        assert (found["checkpoint_id"], found["checkpoint"]) == (saved[-1], {"n": 2})
        assert await checkpointer.list_checkpoints("t") == saved[:0:-1]  # keep_last
        assert storage.checkpointer(keep_last=1).keep_last == 1

    async def test_the_store_is_over_the_same_backend_or_refused(self, storage: Storage) -> None:
        if not storage.has_store:
            with pytest.raises(UnsupportedError, match="no store"):
                storage.store()
            return
        store, other = storage.store(), storage.store()
        try:
            await store.put(("a",), "k", 1)
        except UnsupportedError as told:
            assert "this service has no part" in str(told)  # noqa: PT017
            return
        assert await other.get(("a",), "k") == 1
        of_set = getattr(store, "shards", None)  # its store is over the first shard's backend
        assert (of_set or getattr(store, "backend", storage.backend)) is storage.backend
        await store.close()
        await storage.close()  # the objects may be used again
        if storage.backend.capabilities.persistent_checkpoint_ids:
            assert await store.get(("a",), "k") == 1

    async def test_the_log_is_over_the_same_backend_or_refused(self, storage: Storage) -> None:
        if not storage.has_messages:
            with pytest.raises(UnsupportedError, match="no message logs"):
                storage.messages()
            return
        log = storage.messages(ttl_seconds=60)
        assert (log.backend, log.ttl_seconds) == (storage.backend, 60)
        try:
            await log.append("t", [NewMessage("Hi.")])
        except UnsupportedError as told:
            assert "this service has no part" in str(told)  # noqa: PT017
            return
        assert len(await storage.messages().contents("t")) == 1
