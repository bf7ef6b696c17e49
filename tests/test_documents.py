"""The engine of whole threads over three storages: memory, files, and a toy of four methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drawer import Drawer
from lost_answers import LostAnswers, LostAnswersContract
from shelf import Shelf

from locus_store import NewMessage, memory_checkpointer
from locus_store.backends.documents import Body, ChangedError, DocumentBackend, Tag
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import ObjectDocuments
from locus_store.backends.documents.packed import PackedForm
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.backends.file.backend import FileDocuments
from locus_store.backends.file.format import LinesForm
from locus_store.backends.memory.backend import MemoryDocuments

if TYPE_CHECKING:
    from collections.abc import Callable


class TestMemoryDocuments(LostAnswersContract):
    @pytest.fixture
    def reopen(self) -> Any:
        documents = MemoryDocuments()
        return lambda: documents


class TestFileDocuments(LostAnswersContract):
    form = LinesForm

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        return partial(FileDocuments, str(tmp_path / "threads"), 10.0)


class TestDrawer(LostAnswersContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        return partial(Drawer, tmp_path / "drawer.db")


@pytest.mark.anyio
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_thread_expires_by_the_clock_of_the_storage(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_clock(_: MemoryDocuments) -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    monkeypatch.setattr(MemoryDocuments, "read_clock", read_clock)
    checkpointer = memory_checkpointer(state_type=dict)
    await checkpointer.save({"n": 1}, "t", ttl_seconds=600)
    await checkpointer.save({"n": 2}, "t")
    assert len(await checkpointer.list_checkpoints("t")) == 2
    assert await checkpointer.backend.renew("t", 900) is True
    assert await checkpointer.list_threads() == ["t"]
    hours += 1
    assert await checkpointer.load("t") is None
    assert await checkpointer.list_threads() == []
    await checkpointer.save({"n": 3}, "t")
    assert len(await checkpointer.list_checkpoints("t")) == 1


class Late(MemoryDocuments):
    """Documents whose first put is done, without an answer, just before the next one."""

    is_late = False
    put_late: Callable[[], object] | None = None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        if self.is_late:
            self.is_late, self.put_late = False, partial(super().put, key, body, tag=tag)
            raise ChangedError
        if self.put_late is not None:
            late, self.put_late = self.put_late, None
            late()
        return super().put(key, body, tag=tag)


@pytest.mark.anyio
async def test_a_put_that_is_done_after_it_was_asked_for_is_recognised() -> None:
    documents = Late()
    backend = DocumentBackend(documents)
    log = DocumentMessageLog(backend, owns=False)
    await log.append("t", [NewMessage(n) for n in range(3)])
    documents.is_late = True
    assert (await log.pop("t")).message.content == 2
    assert [it.content for it in await log.load("t") or []] == [0, 1]
    documents.is_late = True
    assert await backend.copy_thread("t", "u")


@pytest.mark.anyio
@pytest.mark.parametrize("form", [PackedForm, LinesForm, SegmentedForm])
async def test_a_lost_deletion_leaves_a_thread_that_was_created_since(form: Any) -> None:
    def create() -> None:
        other.write("t", lambda it: it.open_history("new"), creates=True)

    documents = ObjectDocuments(Shelf(), "p/") if form is SegmentedForm else MemoryDocuments()
    losing = LostAnswers(documents, create)
    other = DocumentThreads(documents, form=form(documents))
    backend = DocumentBackend(losing, form=form(losing))
    await backend.write_state("t", {"n": 0})
    losing.lost = 1
    assert (await backend.remove_thread("t")).existed
    assert other.read("t")


def test_the_page_shows_the_toy_as_it_is() -> None:
    here = Path(__file__).parent
    page = (here.parent / "docs/custom-backend.md").read_text("utf-8")
    assert (here / "drawer.py").read_text("utf-8") in page
