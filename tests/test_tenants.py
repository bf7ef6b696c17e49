"""``for_tenant`` of the objects over a checkpointer, a saver or a store."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import (
    InvalidArgumentError,
    MemoryBackend,
    UnsupportedError,
    open_checkpointer,
    open_saver,
)
from locus_store.blocking import (
    open_checkpointer as open_blocking,
    open_store as open_blocking_store,
)
from locus_store.transfer.archive import import_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(tmp_path: Path, migrated: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'shop.db')}"


def test_a_blocking_checkpointer_shares_its_loop_among_tenants(
    url: str, begun_threads: Callable[[], set[threading.Thread]]
) -> None:
    with open_blocking(url, state_type=dict) as checkpointer:
        checkpointer.save({"of": "default"}, "t")
        before = begun_threads()
        tenants = [checkpointer.for_tenant(f"tenant {n}") for n in range(20)]
        for n, it in enumerate(tenants):
            it.save({"of": n}, "t")
        assert begun_threads() <= before
        tenants[0].close()
        assert [it.load("t") for it in tenants] == [{"of": n} for n in range(20)]
        assert checkpointer.load("t") == {"of": "default"}
        assert len(checkpointer.tenants()) == 21


def test_a_blocking_store_has_tenants(url: str) -> None:
    with open_blocking_store(url) as store:
        acme = store.for_tenant("acme")
        acme.put(("n",), "k", 1)
        acme.close()
        assert (acme.get(("n",), "k"), store.get(("n",), "k")) == (1, None)


async def test_a_saver_of_a_tenant_keeps_its_options(url: str) -> None:
    saver = open_saver(url, keep_last=1)
    acme = saver.for_tenant("acme")
    for n in range(3):
        await acme.put(thread_id="t", checkpoint_id=f"v{n}", checkpoint_data={"n": n})
    assert [it["checkpoint_id"] for it in await acme.list_checkpoints(thread_id="t")] == ["v2"]
    assert await saver.get(thread_id="t") is None
    await acme.close()
    assert await acme.get(thread_id="t") is not None
    await saver.close()


def test_a_graphs_saver_and_store_have_tenants(url: str) -> None:
    pytest.importorskip("langgraph")
    from langgraph.checkpoint.base import empty_checkpoint

    from locus_store.adapters.langgraph import LangGraphSaver, LangGraphStore

    where: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with LangGraphSaver.from_url(url) as saver, LangGraphStore.from_url(url) as store:
        acme, items = saver.for_tenant("acme"), store.for_tenant("acme")
        acme.put(where, empty_checkpoint(), {"source": "input", "step": 0}, {})
        items.put(("n",), "k", {"v": 1})
        acme.close()
        items.close()
        assert acme.get_tuple(where) is not None
        assert saver.get_tuple(where) is None
        assert items.get(("n",), "k") is not None
        assert store.get(("n",), "k") is None


async def test_what_is_known_of_one_tenants_thread_is_not_taken_for_anothers(url: str) -> None:
    checkpointer = open_checkpointer(url, state_type=dict)
    acme, globex = map(checkpointer.for_tenant, ("acme", "globex"))
    long = {"said": ["x" * 50_000]}
    for it in (acme, globex):
        state = await it.load("t") or {**long, "of": it.backend.tenant}
        await it.save(state, "t", "v")
    for it in (acme, globex):
        known = it.backend.known_version("t", "v")
        assert known is not None
        assert (await it.load("t"))["of"] == it.backend.tenant
    marks = [it.backend.known_version("t", "v")[0].line for it in (acme, globex)]
    assert len(set(marks)) == 2
    await checkpointer.close()


async def test_an_import_that_cannot_be_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnsupportedError, match="no tenants"):
        await import_threads(MemoryBackend(), [b"nothing"], all_tenants=True)
    with pytest.raises(InvalidArgumentError, match="not both"):
        await import_threads(MemoryBackend(), [], all_tenants=True, from_tenant="a")


async def test_objects_of_a_tenant_made_for_each_request_renew_a_thread_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = open_checkpointer(url, state_type=dict, ttl_seconds=3_600, refresh_on_read=True)
    renewed: list[tuple[str | None, str]] = []

    async def renew(backend: Any, thread_id: str, ttl_seconds: float) -> bool:
        renewed.append((backend.tenant, thread_id))
        return True

    monkeypatch.setattr(type(checkpointer.backend), "renew", renew)
    for tenant in ("acme", "globex"):
        await checkpointer.for_tenant(tenant).save({"n": 1}, "t")
        for _ in range(5):
            await checkpointer.for_tenant(tenant).load("t")
    await checkpointer.close()  # waits for the renewals of all tenants
    assert renewed == [("acme", "t"), ("globex", "t")]
