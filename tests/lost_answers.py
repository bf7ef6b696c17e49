"""Writes of documents whose answers are lost, over any storage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from locus_store.backends.documents import (
    Body,
    ChangedError,
    DocumentBackend,
    StaleTagError,
    Tag,
    threads,
)
from locus_store.backends.documents.packed import PackedForm
from locus_store.backends.documents.protocol import Access, DocumentForm, Documents, Found
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.testing.documents import DocumentsContract
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.versions.threads import ThreadTransaction


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

    def read_identity(self) -> str | None:
        return self._documents.read_identity()

    def identify(self, store: str) -> None:
        self._documents.identify(store)


class LostAnswersContract(DocumentsContract):
    """The contract of documents, and the engine over them where answers are lost."""

    form: ClassVar[Callable[..., DocumentForm]] = PackedForm
    """The form of threads in them."""

    def test_a_refused_condition_is_no_lost_answer(self, documents: Any) -> None:
        tag = documents.put("t", Body(0, b"one"), tag=None)
        with pytest.raises(StaleTagError):
            documents.put("t", Body(0, b"two"), tag=None)
        documents.put("t", Body(0, b"two"), tag=tag)
        with pytest.raises(StaleTagError):
            documents.delete("t", tag=tag)

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

    async def test_a_lost_put_is_recognised_though_another_one_followed(
        self, documents: Any
    ) -> None:
        def add(transaction: ThreadTransaction) -> None:
            line = transaction.open_history("").line
            transaction.put_writes(line, "v1", [PendingWrite("a", 0, "c", "t", b"\0")])
            transaction.adds_only = self.form is not PackedForm  # packs are replaced by one

        other = DocumentThreads(documents, form=self.form(documents))
        losing = LostAnswers(documents, lambda: other.write("t", add, creates=False))
        backend = DocumentBackend(losing, form=self.form(losing))
        await backend.write_state("t", {"n": 0}, checkpoint_id="v0")
        losing.lost = 1
        written = await backend.write_state("t", {"n": 1}, checkpoint_id="v1")
        assert written.outcome == "head"
        assert len(await backend.history("t")) == 2
        assert len(await backend.get_writes("t", "v1")) == 1

    async def test_a_lost_put_of_the_last_attempt_is_recognised(
        self, documents: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(threads, "ATTEMPTS", 1)
        losing = LostAnswers(documents)
        losing.lost = 1
        assert (await DocumentBackend(losing).write_state("t", {"n": 0})).outcome == "head"

    async def test_a_put_that_was_not_done_is_done_again(self, documents: Any) -> None:
        """The thread was deleted by another writer before the engine asked again."""

        def drop() -> None:
            DocumentThreads(documents).write("t", lambda it: it.drop_thread(), creates=False)

        losing = LostAnswers(documents, drop)
        losing.lost = 1
        backend = DocumentBackend(losing)
        await backend.write_state("t", {"n": 0}, checkpoint_id="v0")
        assert [it.checkpoint_id for it in await backend.history("t")] == ["v0"]
