"""The contract of backends that write several documents for one thread, under faults, as tests.

::

    class TestMine(WriteFaultsContract):
        @pytest.fixture
        def opened(self, tmp_path):
            return partial(MyBackend, tmp_path / "mine")

``opened`` opens the same storage again and again; it is empty at first.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from locus_store.backends.documents import segmented
from locus_store.backends.documents.objects import digest
from locus_store.errors import BackendError
from locus_store.testing.kit import LoopKit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAST_FAULT = 8
SAVES = 3


class KilledError(BaseException):
    """Ends a writer between two writes."""


class Faulty:
    """The writes of an object store, one of which fails.

    Args:
        objects: Whose methods are replaced.
        names: Of the methods that write.
        at: The number of the write that fails.
        is_done: The write is done all the same.
        error: What is raised.
    """

    def __init__(
        self,
        objects: Any,
        names: tuple[str, ...],
        at: int,
        *,
        is_done: bool,
        error: BaseException,
    ) -> None:
        self._left = at
        self._is_done = is_done
        self._error = error
        for name in names:
            setattr(objects, name, self._failing(getattr(objects, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left != 0:
                return real(*args, **options)
            if self._is_done:
                real(*args, **options)
            raise self._error

        return write


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

    def faulty(self, backend: Any, at: int, *, is_done: bool, error: BaseException) -> Any:
        """Return the backend, one write of which fails."""
        Faulty(backend._documents.objects, self.writes, at, is_done=is_done, error=error)  # noqa: SLF001
        return backend

    # --- the tests

    @pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
    async def test_a_writer_that_ends_between_two_writes_leaves_the_old_thread_or_the_new_one(
        self, opened: Any, settle: Callable[[], object], is_done: bool
    ) -> None:
        acknowledged: dict[str, int] = {}
        for at in range(1, LAST_FAULT):
            thread = f"t{at}"
            async with opened() as backend:
                await _save(backend, thread, 0)
                dying = self.faulty(backend, at, is_done=is_done, error=KilledError())
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
                    saved = await self._saved(other, thread, at, is_done=is_done)
                there = {it.checkpoint_id for it in await backend.history(thread)}
                assert saved <= there, thread
            await self._require_whole(backend, settle)

    async def _saved(self, backend: Any, thread: str, at: int, *, is_done: bool) -> set[str]:
        """Return the ids of the saves that were acknowledged, as one write fails."""
        failing = self.faulty(backend, at, is_done=is_done, error=BackendError("refused"))
        saved = {"v0"}
        for n in range(1, 1 + SAVES):
            with suppress(BackendError):
                await _save(failing, thread, n)
                saved.add(f"v{n}")
        return saved

    async def _require_whole(self, backend: Any, settle: Callable[[], object]) -> None:
        """Require that each version is loaded and found, and nothing else is stored."""
        settle()
        with _no_age():
            await backend.vacuum_report()
        settle()
        threads = sorted(await backend.list_threads())
        assert threads
        expected: set[tuple[str, str]] = set()
        for thread in threads:
            for it in await backend.history(thread):
                assert f"v{(await backend.load(thread, it.checkpoint_id))['n']}" == it.checkpoint_id
                expected.add((thread, it.checkpoint_id))
        found = await backend.query("all", "x", 1000)
        assert {(it.thread_id, it.checkpoint_id) for it in found} == expected
        assert {it.thread_id for it in await backend.find("common", 1000)} == set(threads)
        for n in range(1 + SAVES):
            hits = {it.thread_id for it in await backend.find(f"word{n}", 1000)}
            assert hits >= {thread for thread, name in expected if name == f"v{n}"}
        assert self.stored(backend) == self.named(backend, threads)

    def stored(self, backend: Any) -> set[tuple[Any, ...]]:
        """Return the names of the documents beside the heads."""
        return {(thread, name) for thread, name, _ in backend._documents.segments()}  # noqa: SLF001

    def named(self, backend: Any, threads: list[str]) -> set[tuple[Any, ...]]:
        """Return the names of the documents that the heads name."""
        parsed = [backend._threads.parsed(backend._documents, it) for it in threads]  # noqa: SLF001
        return {(digest(it.thread.thread_id), name) for it in parsed for name in it.end.names()}


async def _save(backend: Any, thread: str, n: int) -> None:
    said = [f"common word{at}" for at in range(n + 1)]
    state = {"n": n, "said": said}
    await backend.write_state(thread, state, checkpoint_id=f"v{n}", metadata={"all": "x"})


@contextmanager
def _no_age() -> Iterator[None]:
    """Let ``vacuum`` remove what no head names at once."""
    age, segmented.GARBAGE_AGE = segmented.GARBAGE_AGE, timedelta(seconds=-5)  # type: ignore[misc]
    try:
        yield
    finally:
        segmented.GARBAGE_AGE = age  # type: ignore[misc]
