"""The contracts of ``Documents``, and of backends that write several documents for one thread.

::

    class TestMine(DocumentsContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return partial(MyDocuments, tmp_path / "mine")

    class TestMyBackend(WriteFaultsContract):
        @pytest.fixture
        def opened(self, tmp_path):
            return partial(MyBackend, tmp_path / "mine")

``reopen`` and ``opened`` open the same storage again and again; it is empty at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count, islice
from threading import Barrier
from typing import Any, ClassVar

import pytest

from locus_store.backends.documents import segmented
from locus_store.backends.documents.objects import digest
from locus_store.backends.documents.protocol import Body, ChangedError, Found
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.errors import BackendError
from locus_store.testing.kit import HOSTILE_IDS, LoopKit

RACES = 20
RACERS = 4


class DocumentsContract(LoopKit):
    """Everything that the engine expects of documents; see the module's docstring."""

    @pytest.fixture
    def documents(self, reopen: Any) -> Any:
        return reopen()

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

    def test_a_put_on_an_older_tag_is_refused(self, documents: Any, reopen: Any) -> None:
        """A success would lose the update that another writer made in between."""
        old = documents.put("t", Body(0, b"one"), tag=None)
        new = reopen().put("t", Body(0, b"two"), tag=old)
        assert new != old
        for tag in (old, None):
            with pytest.raises(ChangedError):
                documents.put("t", Body(0, b"three"), tag=tag)
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

    def test_of_racing_creators_one_wins(self, reopen: Any) -> None:
        for n in range(RACES):
            assert self._race(reopen, f"t{n}", None) == 1

    def test_of_racing_replacers_one_wins(self, documents: Any, reopen: Any) -> None:
        tag = documents.put("t", Body(0, b"first"), tag=None)
        for _ in range(RACES):
            assert self._race(reopen, "t", tag) == 1
            tag = documents.get("t").tag

    def _race(self, reopen: Any, key: str, tag: Any) -> int:
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
        threads.write("t", lambda transaction: transaction.open_history(""), creates=True)
        store = documents.read_identity()
        assert store
        assert reopen().read_identity() == store
        assert list(documents.keys()) == ["t"]


LAST_FAULT = 8
SAVES = 3


class KilledError(BaseException):
    """Ends a writer between two writes."""


class WriteFaultsContract(LoopKit):
    """An acknowledged save is there, whichever write fails; the others leave nothing for good."""

    writes: ClassVar[tuple[str, ...]] = ("put", "store", "delete", "discard")
    """The methods of the object store that write."""

    @pytest.fixture(autouse=True)
    def small_tails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nearly every save writes a segment."""
        monkeypatch.setattr(segmented, "TAIL_BYTES", 1)

    @pytest.fixture
    def settle(self) -> Callable[[], object]:
        """Return a function after which lists show all that is stored."""
        return bool

    def make_faulty(self, backend: Any, at: int, *, is_done: bool, error: BaseException) -> Any:
        """Return the backend, whose write number ``at`` fails; with ``is_done``, it is done."""
        objects, numbers = backend._documents.objects, count(1)  # noqa: SLF001

        def make_failing(real: Callable[..., Any]) -> Callable[..., Any]:
            def write(*args: Any, **options: Any) -> Any:
                fails = next(numbers) == at
                result = real(*args, **options) if is_done or not fails else None
                if fails:
                    raise error
                return result

            return write

        for name in self.writes:
            setattr(objects, name, make_failing(getattr(objects, name)))
        return backend

    @pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
    async def test_a_writer_that_ends_between_two_writes_leaves_the_old_thread_or_the_new_one(
        self, opened: Any, settle: Callable[[], object], is_done: bool
    ) -> None:
        acknowledged: dict[str, int] = {}
        for at in range(1, LAST_FAULT):
            thread = f"t{at}"
            async with opened() as backend:
                await _save(backend, thread, 0)
                dying = self.make_faulty(backend, at, is_done=is_done, error=KilledError())
                acknowledged[thread] = 0
                with suppress(KilledError):
                    for n in range(1, 1 + SAVES):
                        await _save(dying, thread, n)
                        acknowledged[thread] = n
                    await dying.remove(thread, ["v0"])
        async with opened() as backend:
            for thread, last in acknowledged.items():
                assert (await backend.load(thread))["n"] in {last, last + 1}, thread
            await self._require_whole(backend, settle)

    @pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
    async def test_a_write_that_fails_loses_no_acknowledged_save(
        self, opened: Any, settle: Callable[[], object], is_done: bool
    ) -> None:
        async with opened() as backend:
            for at in range(1, LAST_FAULT):
                thread = f"t{at}"
                await _save(backend, thread, 0)
                async with opened() as other:
                    saved = await self._save_with_fault(other, thread, at, is_done=is_done)
                there = {it.checkpoint_id for it in await backend.history(thread)}
                assert saved <= there, thread
            await self._require_whole(backend, settle)

    async def _save_with_fault(
        self, backend: Any, thread: str, at: int, *, is_done: bool
    ) -> set[str]:
        """Return the ids of the saves that were acknowledged, as one write fails."""
        failing = self.make_faulty(backend, at, is_done=is_done, error=BackendError("refused"))
        saved = {"v0"}
        for n in range(1, 1 + SAVES):
            with suppress(BackendError):
                await _save(failing, thread, n)
                saved.add(f"v{n}")
        return saved

    async def _require_whole(self, backend: Any, settle: Callable[[], object]) -> None:
        """Require that each version is loaded and found, and nothing else is stored."""
        settle()
        with _ignore_age():
            await backend.vacuum_report()
        settle()
        threads = sorted(await backend.list_threads())
        assert threads
        expected: set[tuple[str, str]] = set()
        for thread in threads:
            for version in await backend.history(thread):
                assert (
                    f"v{(await backend.load(thread, version.checkpoint_id))['n']}"
                    == version.checkpoint_id
                )
                expected.add((thread, version.checkpoint_id))
        found = await backend.query("all", "x", 1000)
        assert {(it.thread_id, it.checkpoint_id) for it in found} == expected
        assert {it.thread_id for it in await backend.find("common", 1000)} == set(threads)
        for n in range(1 + SAVES):
            hits = {it.thread_id for it in await backend.find(f"word{n}", 1000)}
            assert hits >= {thread for thread, name in expected if name == f"v{n}"}
        assert self.list_stored(backend) == self.list_named(backend, threads)

    def list_stored(self, backend: Any) -> set[tuple[Any, ...]]:
        """Return the names of the documents beside the heads."""
        return {(thread, name) for thread, name, _ in backend._documents.list_segments()}  # noqa: SLF001

    def list_named(self, backend: Any, threads: list[str]) -> set[tuple[Any, ...]]:
        """Return the names of the documents that the heads name."""
        parsed = [backend._threads.read_parsed(backend._documents, it) for it in threads]  # noqa: SLF001
        return {
            (digest(head.thread.thread_id), name)
            for head in parsed
            for name in head.end.list_names()
        }


async def _save(backend: Any, thread: str, n: int) -> None:
    said = [f"common word{at}" for at in range(n + 1)]
    state = {"n": n, "said": said}
    await backend.write_state(thread, state, checkpoint_id=f"v{n}", metadata={"all": "x"})


@contextmanager
def _ignore_age() -> Iterator[None]:
    """Let ``vacuum`` remove what no head names at once."""
    age, segmented.GARBAGE_AGE = segmented.GARBAGE_AGE, timedelta(seconds=-5)  # type: ignore[misc]
    try:
        yield
    finally:
        segmented.GARBAGE_AGE = age  # type: ignore[misc]
