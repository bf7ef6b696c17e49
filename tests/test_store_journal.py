"""The journal of a store on documents: lost answers, tails, segments, damage, neighbours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shelf import Shelf, shelf_backend

from locus_store import (
    BackendError,
    ConflictError,
    FileStore,
    IntegrityError,
    SchemaError,
    StorageBackendAdapter,
    file_checkpointer,
)
from locus_store.backends.documents import item_journal
from locus_store.backends.documents.objects import ITEMS, ObjectDocuments
from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.documents.store import DocumentStore
from locus_store.blocking import BlockingStore
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.backends.documents.protocol import Body, Tag

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).parent / "workers" / "on_store.py"
NS = ("m", "u")
HEAD = "p/" + ITEMS + "journal"


class LosesAnswers(ObjectDocuments):
    """Does each put, and loses the answer of some."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf, "p/", heads=ITEMS)
        self.lost = 0
        self.lost_segments = 0
        self.also: Any = None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        made = super().put(key, body, tag=tag)
        if self.lost_segments and key != item_journal.HEAD:
            self.lost_segments -= 1
            raise ChangedError
        if self.lost and key == item_journal.HEAD:
            self.lost -= 1
            if self.also:
                self.also()
            raise ChangedError
        return made


def on(shelf: Shelf, **options: Any) -> DocumentStore:
    return DocumentStore(ObjectDocuments(shelf, "p/", heads=ITEMS), **options)


def segments(shelf: Shelf) -> list[str]:
    return [it for it in shelf.stored if it.startswith("p/" + ITEMS) and it != HEAD]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Heads of a few lines."""
    monkeypatch.setattr(item_journal, "HEAD_BYTES", 1000)
    return iter(())


async def test_a_put_whose_answer_was_lost_is_not_repeated() -> None:
    documents = LosesAnswers(Shelf())
    store = DocumentStore(documents)
    for n in range(1, 6):
        documents.lost = n % 3
        assert await store.put(NS, "k", n) == n
    assert (await store.get_item(NS, "k")).version == 5


class Late(ObjectDocuments):
    """Does the first put of a head just before the second one, and gives it no answer."""

    late: Any = None
    is_late = False

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        put = partial(super().put, key, body, tag=tag)
        if self.is_late and key == item_journal.HEAD:
            self.is_late, self.late = False, put
            raise ChangedError
        if self.late:
            late, self.late = self.late, None
            late()
        return put()


async def test_a_put_that_is_done_late_is_done_once() -> None:
    documents = Late(Shelf(), "p/", heads=ITEMS)
    store = DocumentStore(documents)
    await store.put(NS, "k", 0)
    documents.is_late = True
    assert await store.put(NS, "k", 1) == 2


async def test_a_lost_put_of_the_last_attempt_is_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("locus_store.backends.documents.store.ATTEMPTS", 1)
    documents = LosesAnswers(Shelf())
    documents.lost = 1
    assert await DocumentStore(documents).put(NS, "k", 1) == 1


async def test_nor_is_one_that_another_writer_has_made_a_segment(small: None) -> None:
    shelf = Shelf()
    documents, other = LosesAnswers(shelf), BlockingStore(on(shelf))
    store = DocumentStore(documents)
    documents.also = lambda: [other.put(NS, f"o{n}", "x" * 300) for n in range(40)]
    documents.lost = 1
    assert await store.put(NS, "k", 1, expected_version=0) == 1
    assert (await on(shelf).get_item(NS, "k")).version == 1


async def test_a_segment_whose_answer_was_lost_is_put_again() -> None:
    documents = LosesAnswers(Shelf())
    store = DocumentStore(documents)
    await store.put(NS, "k", "secret")
    documents.lost_segments = 2
    assert await store.delete(NS, "k") is True
    assert len(segments(documents.objects)) == 1  # type: ignore[arg-type]  # a Shelf


async def test_a_removal_whose_answer_was_lost_leaves_no_byte() -> None:
    shelf = Shelf()
    documents = LosesAnswers(shelf)
    store = DocumentStore(documents)
    await store.put(NS, "k", "secret")
    await store.delete(NS, "other")
    await store.put_batch([(NS, "other", 1)])
    await store.delete(NS, "other")  # the secret is in a segment
    documents.lost = 1
    assert await store.delete(NS, "k") is True
    assert not [it for it, (*_, content) in shelf.stored.items() if b"secret" in content]


async def test_an_item_whose_value_could_not_be_deleted_stays_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BackendError("no right to delete")

    shelf = Shelf()
    store = on(shelf)
    await store.put_batch([(NS, "k", "secret"), (NS, "other", 1)])
    await store.delete(NS, "other")  # the secret is in a segment
    with monkeypatch.context() as patch:
        patch.setattr(shelf, "delete", refuse)
        with pytest.raises(BackendError, match="removed, but"):
            await store.delete(NS, "k")
    assert await store.get(NS, "k") is None
    await store.put(NS, "other", 1)
    await store.delete(NS, "other")
    assert await on(shelf).get(NS, "k") is None
    assert not [it for it, (*_, content) in shelf.stored.items() if b"secret" in content]


async def test_a_put_that_was_refused_is_repeated_whatever_others_have_changed() -> None:
    shelf = Shelf()
    store, other = on(shelf), on(shelf)
    await store.put(NS, "k", 0)
    for n in range(item_journal._RECENT):
        await other.put(NS, "other", n)
        await other.delete(NS, "other")
    assert await store.put(NS, "k", 1, expected_version=1) == 2


async def test_a_put_whose_answer_was_lost_before_many_others_is_told() -> None:
    shelf = Shelf()
    documents, other = LosesAnswers(shelf), BlockingStore(on(shelf))
    documents.also = lambda: [
        other.delete(NS, f"{n}") for n in range(200) if other.put(NS, f"{n}", n)
    ]
    documents.lost = 1
    with pytest.raises(BackendError, match="may have been written"):
        await DocumentStore(documents).put(NS, "k", 1)


async def test_after_a_put_of_another_object_the_head_alone_is_read(small: None) -> None:
    shelf = Shelf()
    async with on(shelf) as store, on(shelf) as other:
        await store.put_batch([(NS, f"k{n}", "x" * 50) for n in range(100)])
        for n in range(30):
            await store.put(NS, "k", n)
            before = shelf.calls["get"]
            assert await other.get(NS, "k") == n
            assert shelf.calls["get"] - before <= 2  # at times a segment that has just been made
    assert segments(shelf)


async def test_storage_grows_with_what_is_kept(small: None) -> None:
    shelf = Shelf()
    async with on(shelf) as store:
        for n in range(300):
            await store.put(NS, "k", [n, "x" * 100])
        assert sum(len(content) for _, _, content in shelf.stored.values()) < 8000
        assert len(segments(shelf)) <= 2
        await store.put_batch([(NS, f"k{n}", "x" * 100) for n in range(300)])
        for n in range(300):
            await store.put(NS, f"l{n}", "x" * 100)
        assert len(segments(shelf)) <= 10
    async with on(shelf) as store:
        assert len(await store.list(NS, 1000)) == 601
        assert [it.key for it in await store.search(NS, limit=3)] == ["l299", "l298", "l297"]


async def test_a_segment_that_a_killed_writer_left_is_removed(small: None) -> None:
    shelf = Shelf()
    async with on(shelf) as store:
        await store.put(NS, "k", "x" * 2000)
        shelf.stored["p/" + ITEMS + f"{1:016}-killed"] = (10**9, shelf.read_clock(), b"")
        for n in range(3):
            await store.put(NS, "k", f"{n}" * 2000)
        assert not [it for it in segments(shelf) if "killed" in it]


async def test_no_byte_of_a_removed_value_stays(small: None) -> None:
    shelf = Shelf()
    async with on(shelf) as store:
        for n in range(40):
            await store.put(
                (*NS, f"{n % 4}"), f"k{n}", f"secret{n:02}", ttl_seconds=n // 39 or None
            )
        await store.delete((*NS, "1"), "k5")
        await store.clear_namespace((*NS, "2"))
        await asyncio.sleep(1.05)
        assert await store.expire() == 1
        everything = b"".join(content for _, _, content in shelf.stored.values())
        left = {n for n in range(40) if f"secret{n:02}".encode() in everything}
        assert left == {n for n in range(39) if n % 4 != 2} - {5}
        assert len(await store.search((), limit=100)) == len(left)


async def test_calls_that_wait_share_a_put(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.blocks = True  # type: ignore[misc]  # of this object
    async with on(shelf) as store:
        assert await asyncio.gather(*(store.put(NS, f"{n}", n) for n in range(50))) == [1] * 50
        assert shelf.calls["put"] < 30
        racing = [store.put(NS, "k", n, expected_version=0) for n in range(20)]
        found = await asyncio.gather(*racing, return_exceptions=True)
        assert sum(isinstance(it, ConflictError) for it in found) == 19


@pytest.mark.parametrize("where", ["head", "line", "segment", "lost line", "cut"])
async def test_damage_is_an_error_with_a_remedy(small: None, where: str) -> None:
    shelf = Shelf()
    async with on(shelf) as store:
        for n in range(30):
            await store.put(NS, f"k{n}", "x" * 100)
        [*_, name] = sorted(segments(shelf)) if where == "segment" else [HEAD]
        tag, at, content = shelf.stored[name]
        lines = content.splitlines(keepends=True)
        if where in {"head", "segment"}:
            lines[0] = lines[0].replace(b"0", b"1", 1)
        elif where == "line":
            lines[-1] = lines[-1].replace(b"xxx", b"xyx", 1)
        elif where == "lost line":
            del lines[-2]
        damaged = b"".join(lines)[: -3 if where == "cut" else None]
        assert damaged != content
        shelf.stored[name] = (tag + 10**6, at, damaged)
        if where != "segment":  # which this object does not read again
            with pytest.raises(IntegrityError, match="backup"):
                await store.get(NS, "k1")
    with pytest.raises(IntegrityError, match="backup"):
        await on(shelf).get(NS, "k1")


async def test_a_copy_that_lacks_a_segment_is_reported(small: None) -> None:
    """As one that a program made while the journal was changed."""
    shelf = Shelf()
    async with on(shelf) as store:
        for n in range(20):
            await store.put(NS, f"k{n}", [n, "x" * 100])
        [segment, *_] = sorted(it for it in shelf.stored if it != HEAD)
        del shelf.stored[segment]
        for call in (lambda it: it.get(NS, "k1"), lambda it: it.put(NS, "k", 1)):
            with pytest.raises(IntegrityError, match=f"{segment}.*missing.*backup"):
                await call(on(shelf))


async def test_a_journal_that_was_restored_from_a_backup_is_read_again(small: None) -> None:
    shelf = Shelf()
    async with on(shelf) as store:
        await store.put(NS, "k", "old")
        backup = dict(shelf.stored)
        for n in range(20):
            await store.put(NS, "k", [n, "x" * 100])
        shelf.stored = {name: (tag + 10**6, *rest) for name, (tag, *rest) in backup.items()}
        assert await store.get(NS, "k") == "old"
        assert await store.put(NS, "k", "new") == 2
        del shelf.stored[HEAD]
        assert await store.get(NS, "k") is None


async def test_a_journal_of_a_newer_version_is_refused() -> None:
    shelf = Shelf()
    head, _ = item_journal._encode_line({"journal": 2, "segments": [], "recent": []}, 0)
    shelf.stored[HEAD] = (1, shelf.read_clock(), head)
    with pytest.raises(SchemaError, match="upgrade"):
        await on(shelf).get(NS, "k")


async def test_a_store_of_another_dimension_is_refused(tmp_path: Path) -> None:
    async with FileStore(tmp_path, dimension=2) as store:
        await store.put_with_embedding(NS, "k", 1, [1, 0])
    with pytest.raises(SchemaError, match="dimension=2"):
        await FileStore(tmp_path, dimension=3).setup()
    async with FileStore(tmp_path) as store:
        assert await store.get(NS, "k") == 1
        assert store.stored_dimension == 2


async def test_threads_and_items_of_one_place_do_not_see_each_other(tmp_path: Path) -> None:
    shelf = Shelf()
    beside = on(shelf)
    places: list[tuple[Any, Any]] = [
        (file_checkpointer(tmp_path, state_type=dict), FileStore(tmp_path)),
        (StorageBackendAdapter(shelf_backend(shelf), state_type=dict), beside),
    ]
    for checkpointer, store in places:
        await store.put(NS, "k", 1)
        assert await checkpointer.list_threads() == []
        await checkpointer.save({"n": 1}, "store")
        backend = checkpointer.backend
        assert await backend.scan() == await checkpointer.list_threads() == ["store"]
        assert await backend.damage() == []
        assert (await backend.vacuum_report(30)).threads == 0
        assert await backend.remove("store") == 1
        assert await store.get(NS, "k") == 1
        await checkpointer.close()
        await store.close()


async def test_a_store_is_beside_a_backend(tmp_path: Path) -> None:
    async with file_checkpointer(tmp_path, state_type=dict) as checkpointer:
        store = FileStore(backend=checkpointer.backend)
        await store.put(NS, "k", 1)
        assert await FileStore(tmp_path).get(NS, "k") == 1


def test_the_lines_of_a_journal_are_json(tmp_path: Path) -> None:
    asyncio.run(FileStore(tmp_path).put(NS, "k", {"é": 1}))
    lines = (tmp_path / "store" / "journal.json").read_text("utf-8").splitlines()
    assert [json.loads(it)["check"] for it in lines]
    assert encode({"é": 1}).decode() in lines[-1]


@pytest.mark.posix
def test_processes_that_expect_versions_lose_no_step(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    command = [sys.executable, str(WORKER), "count", url, "30"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [it.communicate(timeout=120)[0].split() for it in workers]
    values = [int(number) for it in told for number in it[1:-2:2]]
    assert sorted(values) == [*range(1, 91)]
    item = asyncio.run(FileStore(tmp_path).get_item(("counters",), "n"))
    assert (item.value, item.version) == (90, 90)
