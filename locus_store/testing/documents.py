"""The contract of ``Documents``, as tests.

::

    class TestMine(DocumentsContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return partial(MyDocuments, tmp_path / "mine")

``reopen`` opens the same storage again and again; it is empty at first.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.protocol import Body, ChangedError, Documents, Found
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.testing.kit import HOSTILE_IDS, LoopKit
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.backends.documents.protocol import Access, Tag
    from locus_store.versions.threads import Edit

RACES = 20
RACERS = 4


class LostAnswers(Documents):
    """Documents that are written while the answers to their writers are lost.

    Args:
        documents: Where they are stored.
        meanwhile: What happens before the engine asks again.
    """

    def __init__(self, documents: Documents, meanwhile: Callable[[], object] = bool) -> None:
        self.blocks = documents.blocks  # type: ignore[misc]  # of this object
        self.lost = 0
        """So many answers from now on."""
        self._documents = documents
        self._meanwhile = meanwhile

    @contextmanager
    def held(self, key: str, *, creates: bool) -> Iterator[Access]:
        """See ``Documents``, also for the following methods."""
        with self._documents.held(key, creates=creates) as access:
            yield access
        if self.lost:
            self.lost -= 1
            self._meanwhile()
            raise ChangedError

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        return self._documents.get(key, known=known)

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        return self._documents.put(key, body, tag=tag)

    def delete(self, key: str, *, tag: Tag) -> None:
        self._documents.delete(key, tag=tag)

    def keys(self, after: str = "") -> Iterator[str]:
        return self._documents.keys(after)

    def identity(self) -> str | None:
        return self._documents.identity()

    def identify(self, store: str) -> None:
        self._documents.identify(store)


class DocumentsContract(LoopKit):
    """Everything that the engine expects of documents; see the module's docstring."""

    @pytest.fixture
    def documents(self, reopen: Any) -> Any:
        return reopen()

    # --- single documents

    def test_a_document_that_is_not_there_is_none(self, documents: Any) -> None:
        assert documents.get("t") is None
        assert list(documents.keys()) == []

    def test_a_put_is_read_whole_by_every_object(self, documents: Any, reopen: Any) -> None:
        tag = documents.put("t", Body(0, b"one\n\0\xff"), tag=None)
        assert documents.get("t") == Found(tag, b"one\n\0\xff")
        assert reopen().get("t") == Found(tag, b"one\n\0\xff")

    def test_a_body_continues_the_first_bytes_of_the_stored_one(self, documents: Any) -> None:
        tag = documents.put("t", Body(0, b"one, end"), tag=None)
        tag = documents.put("t", Body(3, b", two, end"), tag=tag)
        assert documents.get("t").content == b"one, two, end"
        tag = documents.put("t", Body(2, b"!"), tag=tag)
        assert documents.get("t").content == b"on!"

    def test_a_document_is_created_once(self, documents: Any) -> None:
        tag = documents.put("t", Body(0, b"one"), tag=None)
        with pytest.raises(ChangedError):
            documents.put("t", Body(0, b"two"), tag=None)
        assert documents.get("t") == Found(tag, b"one")

    def test_a_put_on_an_older_tag_is_refused(self, documents: Any, reopen: Any) -> None:
        """A success would lose the update that another writer made in between."""
        old = documents.put("t", Body(0, b"one"), tag=None)
        new = reopen().put("t", Body(0, b"two"), tag=old)
        assert new != old
        with pytest.raises(ChangedError):
            documents.put("t", Body(0, b"three"), tag=old)
        assert documents.get("t") == Found(new, b"two")

    def test_a_put_on_the_tag_of_a_deleted_document_is_refused(self, documents: Any) -> None:
        tag = documents.put("t", Body(0, b"one"), tag=None)
        documents.delete("t", tag=tag)
        with pytest.raises(ChangedError):
            documents.put("t", Body(0, b"two"), tag=tag)
        assert documents.get("t") is None

    def test_a_known_document_may_come_without_content(self, documents: Any) -> None:
        old = documents.put("t", Body(0, b"one"), tag=None)
        assert documents.get("t", known=old) in {Found(old, None), Found(old, b"one")}
        new = documents.put("t", Body(0, b"two"), tag=old)
        assert documents.get("t", known=old) == Found(new, b"two")
        assert documents.get("u", known=new) is None

    def test_a_document_is_deleted_under_its_tag_only(self, documents: Any, reopen: Any) -> None:
        old = documents.put("t", Body(0, b"one"), tag=None)
        documents.put("u", Body(0, b"other"), tag=None)
        new = documents.put("t", Body(0, b"two"), tag=old)
        with pytest.raises(ChangedError):
            documents.delete("t", tag=old)
        assert documents.get("t") == Found(new, b"two")
        reopen().delete("t", tag=new)
        assert documents.get("t") is None
        with pytest.raises(ChangedError):
            documents.delete("t", tag=new)
        assert documents.get("u").content == b"other"

    # --- races

    def test_of_racing_creators_one_wins(self, reopen: Any) -> None:
        for n in range(RACES):
            assert self._winners(reopen, f"t{n}", None) == 1

    def test_of_racing_replacers_one_wins(self, documents: Any, reopen: Any) -> None:
        tag = documents.put("t", Body(0, b"first"), tag=None)
        for _ in range(RACES):
            assert self._winners(reopen, "t", tag) == 1
            tag = documents.get("t").tag

    def _winners(self, reopen: Any, key: str, tag: Any) -> int:
        """Return how many racing puts on ``tag`` succeeded; the last of them is stored."""
        start = Barrier(RACERS)

        def race(n: int) -> bytes | None:
            mine, body = reopen(), b"of racer %d" % n
            start.wait()
            try:
                mine.put(key, Body(0, body), tag=tag)
            except ChangedError:
                return None
            return body

        with ThreadPoolExecutor(RACERS) as pool:
            winners = [it for it in pool.map(race, range(RACERS)) if it is not None]
        assert reopen().get(key).content in winners
        return len(winners)

    # --- keys

    def test_keys_are_in_order_and_begin_above_another(self, documents: Any) -> None:
        names = [f"t{n:03}" for n in range(120)]
        for name in reversed(names):
            documents.put(name, Body(0, b"one"), tag=None)
        assert list(documents.keys()) == names
        assert list(documents.keys("t007")) == names[8:]
        assert list(documents.keys("t007+")) == names[8:]
        assert list(documents.keys(names[-1])) == []
        pages: list[str] = []
        after = ""
        while page := list(islice(documents.keys(after), 50)):
            pages, after = [*pages, *page], page[-1]
        assert pages == names

    def test_every_thread_id_is_a_key_of_its_own(self, documents: Any) -> None:
        tags = {it: documents.put(it, Body(0, it.encode()), tag=None) for it in HOSTILE_IDS}
        assert list(documents.keys()) == sorted(HOSTILE_IDS)
        for name, tag in tags.items():
            assert documents.get(name) == Found(tag, name.encode())
        for name, tag in tags.items():
            documents.delete(name, tag=tag)
        assert list(documents.keys()) == []

    def test_the_name_of_the_store_is_no_key(self, documents: Any, reopen: Any) -> None:
        threads = DocumentThreads(documents)
        threads.write("t", lambda edit: edit.open_space(""), creates=True)
        store = documents.identity()
        assert store
        assert reopen().identity() == store
        assert list(documents.keys()) == ["t"]

    # --- lost answers, through the engine

    async def test_a_put_whose_answer_was_lost_is_recognised(self, documents: Any) -> None:
        losing = LostAnswers(documents)
        backend = DocumentBackend(losing)
        for n in range(3):
            losing.lost = 1
            written = await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}")
            assert written.outcome == "head"
        assert [it.checkpoint_id for it in await backend.history("t")] == ["v2", "v1", "v0"]
        losing.lost = 1
        write = PendingWrite("a", 0, "c", "t", b"\0")
        assert await backend.put_writes("t", "v2", [write], seen=[])
        assert await backend.get_writes("t", "v2") == [write]
        losing.lost = 1
        assert await backend.copy_thread("t", "u")
        losing.lost = 1
        assert await backend.remove("t", ["v0", "v1"]) == 2
        losing.lost = 1
        assert (await backend.remove_thread("t")).existed
        assert await backend.load("u") == {"n": 2}
        assert losing.lost == 0

    async def test_a_lost_put_is_recognised_below_what_others_added(self, documents: Any) -> None:
        def add(edit: Edit) -> None:
            line = edit.open_space("").line
            edit.put_writes(line, "v1", [PendingWrite("a", 0, "c", "t", b"\0")])

        other = DocumentThreads(documents)
        losing = LostAnswers(documents, lambda: other.write("t", add, creates=False))
        backend = DocumentBackend(losing)
        await backend.write_state("t", {"n": 0}, checkpoint_id="v0")
        losing.lost = 1
        written = await backend.write_state("t", {"n": 1}, checkpoint_id="v1")
        assert written.outcome == "head"
        assert len(await backend.history("t")) == 2
        assert len(await backend.get_writes("t", "v1")) == 1

    async def test_a_put_that_was_not_done_is_done_again(self, documents: Any) -> None:
        """The thread was deleted by another writer before the engine asked again."""

        def drop() -> None:
            DocumentThreads(documents).write("t", lambda it: it.drop_thread(), creates=False)

        losing = LostAnswers(documents, drop)
        losing.lost = 1
        backend = DocumentBackend(losing)
        await backend.write_state("t", {"n": 0}, checkpoint_id="v0")
        assert [it.checkpoint_id for it in await backend.history("t")] == ["v0"]
