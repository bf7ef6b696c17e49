from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiers import first_of

from locus_store import NewMessage, open_checkpointer
from locus_store.open import Storage
from locus_store.timeline.changes import describe_record
from locus_store.timeline.graph import Cursor, find_marks, graph, measure_stored
from locus_store.types import PendingWrite
from locus_store.versions.sizes import INTERRUPT, MeasuresVersions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", *first_of("sqlite", "file", "postgresql", "redis")])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    urls = {
        "memory": lambda: "memory://",
        "file": lambda: f"file://{tmp_path}/files",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "postgresql": lambda: request.getfixturevalue("migrated_database"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    async with open_checkpointer(urls[request.param](), state_type=dict) as checkpointer:
        yield checkpointer.backend


async def grow(backend: Any) -> None:
    """a - b - c - d, and e - f off b, which is the head's line."""
    for name, parent in zip("abcdef", [None, "a", "b", "c", "b", "e"], strict=True):
        await backend.write_state(
            "t", {"n": name * 100}, checkpoint_id=name, parent_id=parent, is_root=parent is None
        )


async def test_versions_are_marked_by_their_place_page_after_page(backend: Any) -> None:
    await grow(backend)
    expected = [(*"fh",), (*"em",), (*"ds",), (*"cs",), (*"bm",), (*"am",)]
    for limit in (1, 2, 4, 6, 100):
        found, cursor, heads = [], None, set()
        while page := await graph(backend, "t", limit=limit, cursor=cursor):
            heads.add(page.head.checkpoint_id)
            found += [(it.version.checkpoint_id, (it.place or "?")[0]) for it in page.nodes]
            cursor = page.next
            if cursor is None:
                break
        assert (found, heads) == (expected, {"f"})
    assert await graph(backend, "unknown") is None


async def test_the_main_line_is_not_known_behind_a_version_that_somebody_names(
    backend: Any,
) -> None:
    await grow(backend)
    page = await graph(backend, "t", cursor=Cursor("e", None))
    assert page is not None
    assert {it.place for it in page.nodes} == {None}


async def test_sizes_are_those_of_the_stored_payloads(backend: Any) -> None:
    await grow(backend)
    page = await graph(backend, "t", limit=4)
    assert page is not None
    records = await backend.records("t", first=1, last=6)
    sizes = {sequence: len(payload) for sequence, _, payload in records if sequence > 2}
    assert await measure_stored(backend, page.nodes) == sizes
    assert await measure_stored(backend, []) == {}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_versions_of_several_threads_are_counted_without_hidden_ones(backend: Any) -> None:
    assert isinstance(backend, MeasuresVersions)
    for at in range(5):
        await backend.write_state("t", {"n": at})
        await backend.write_state("t", {"n": at}, namespace="sub")
        await backend.write_state("short", {"n": at}, keep_last=2)
    assert await backend.count_versions(["t", "short", "none"]) == {"t": 10, "short": 2}
    assert await backend.count_versions([]) == {}


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql"], indirect=True)
async def test_interrupted_threads_and_logs_are_marked(backend: Any) -> None:
    waits = PendingWrite("task", -3, INTERRUPT, "json", b"1")
    for thread in ("both", "later", "plain"):
        await backend.write_state(thread, {}, checkpoint_id="v")
        await backend.put_writes(thread, "v", [waits][thread == "plain" :])
    await backend.write_state("later", {"answered": True})
    log, said = Storage(backend).messages(), [NewMessage("Hi.")]
    await log.append("both", said, also={("chat", "a"): said, ("chat", "b"): said})
    found = await find_marks(backend, log, ["both", "chat", "later", "plain", "none"])
    assert {name: (str(it), it.kind) for name, it in found.items()} == {
        "both": ("interrupted, 1 message", "agent"),
        "chat": ("2 messages", "log"),
        "later": ("", "agent"),
        "plain": ("", "agent"),
        "none": ("", "log"),
    }
    assert await find_marks(backend, log, []) == {}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_threads_have_their_user_their_expiry_and_what_the_newest_save_changed(
    backend: Any,
) -> None:
    said = [{"role": "user", "content": "Bern"}]
    await backend.write_state("t", {"messages": said}, metadata={"source": "loop", "step": 1})
    more = {"messages": [*said, {"role": "user", "content": "Zurich then"}]}
    about = {"source": "loop", "step": 2}
    await backend.write_state("t", more, metadata=about, ttl_seconds=3_600)
    await backend.write_state("long", {"text": "".join(map(chr, range(20_000, 50_000)))})
    await backend.write_state("t", {}, namespace="sub")
    log = Storage(backend).messages()
    await log.append("chat", [NewMessage("Hi.")], user_id="alex")
    found = await backend.find_statuses(["t", "long", "chat"])
    assert str(describe_record(found["t"].record, 10_000)) == "messages = 'Zurich then'"
    assert (found["t"].metadata, found["t"].kind) == (about, "graph")
    assert found["t"].expires_at is not None
    assert (found["long"].record, found["long"].metadata) == (None, {})
    assert (found["chat"].user_id, found["chat"].kind) == ("alex", "session")
