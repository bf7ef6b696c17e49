"""Heads and segments over a dictionary with etags: the contracts, and what is stored and asked."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from lost_answers import LostAnswersContract
from properties import given, settings
from shelf import ObjectsProbe, Shelf, shelf_backend

from locus_store import IntegrityError, NewMessage, SchemaError
from locus_store.backends.documents import segmented
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import (
    HEADS,
    SEGMENTS,
    ObjectDocuments,
    decode_name,
    encode_name,
)
from locus_store.backends.documents.protocol import ChangedError
from locus_store.testing.documents import WriteFaultsContract
from locus_store.versions.sizes import StatusesWanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TestObjectDocuments(LostAnswersContract):
    @pytest.fixture
    def reopen(self) -> Any:
        shelf = Shelf()
        return lambda: ObjectDocuments(shelf, "p/")


class TestFaultsOnShelf(WriteFaultsContract):
    @pytest.fixture
    def opened(self) -> Any:
        shelf = Shelf()
        return lambda: shelf_backend(Opened(shelf))


class Opened(Shelf):
    """Another object over a dictionary."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.stored = shelf.stored
        self._tags = shelf._tags


# --- what is stored, and how often a storage is asked


def chat(turns: int) -> Iterator[dict[str, Any]]:
    """The states of a conversation, each with one more message of about 1,390 characters."""
    words = random.Random(1)
    messages: list[dict[str, str]] = []
    for n in range(turns):
        text = " ".join(f"{words.getrandbits(28):x}" for _ in range(180))
        messages = [*messages, {"role": "user", "content": text}]
        yield {"messages": messages, "iteration": n}


async def grown(shelf: Shelf, turns: int) -> dict[str, Any]:
    """A thread ``t`` of so many turns, and its last state."""
    backend, state = shelf_backend(shelf), dict[str, Any]()
    for state in chat(turns):
        await backend.write_state("t", state)
    return state


@pytest.mark.anyio
@pytest.mark.full
async def test_a_thousand_turns_take_few_requests_and_bytes() -> None:
    shelf = Shelf()
    state = await grown(shelf, 1000)
    heads = [len(it) for name, (_, _, it) in shelf.stored.items() if "/heads/" in name]
    assert sum(shelf.calls.values()) <= 1.1 * 1000
    assert heads[0] <= 64 * 1024
    assert sum(len(it) for _, _, it in shelf.stored.values()) <= 0.8 * len(json.dumps(state))
    shelf.calls.clear()
    backend = shelf_backend(shelf)
    assert await backend.load("t") == state
    assert sum(shelf.calls.values()) <= 8
    shelf.calls.clear()
    assert await backend.load("t") == state
    assert shelf.calls == {"get": 1}
    await backend.write_state("another", {})
    shelf.calls.clear()
    await backend.remove("t")
    assert shelf.calls == {"get": 1, "delete": 1, "discard": 1}
    assert [it for it in shelf.stored if "/segments/" in it] == []


@pytest.mark.anyio
async def test_a_save_onto_a_known_head_is_one_request() -> None:
    shelf = Shelf()
    backend = shelf_backend(shelf)
    await backend.write_state("t", {"n": 0})
    shelf.calls.clear()
    await backend.write_state("t", {"n": 1})
    assert shelf.calls == {"put": 1}


class Killed(BaseException):
    """Ends a writer between two calls."""


class Fragile(Shelf):
    """Fails at the call with a number, before or after it is done."""

    def __init__(self, shelf: Shelf, at: int, *, is_done: bool, error: type[BaseException]) -> None:
        super().__init__()
        self.stored = shelf.stored
        self._tags = shelf._tags
        self._at = at
        self._is_done = is_done
        self._error = error
        self.failed = False

    def _fails(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._at -= 1
        if self._at == 0:
            self.failed = True
            if self._is_done:
                call(*args, **kwargs)
            raise self._error
        return call(*args, **kwargs)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        return self._fails(super().put, *args, **kwargs)

    def store(self, *args: Any, **kwargs: Any) -> Any:
        return self._fails(super().store, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        return self._fails(super().delete, *args, **kwargs)

    def discard(self, *args: Any, **kwargs: Any) -> Any:
        return self._fails(super().discard, *args, **kwargs)


@pytest.mark.anyio
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_writer_that_dies_leaves_the_old_thread_or_the_new_one(
    at: int, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segments are removed once they are a day old; younger ones may be another writer's."""
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    backend = shelf_backend(shelf)
    for n in range(3):
        await backend.write_state("t", {"n": n})
    dying = shelf_backend(Fragile(shelf, at, is_done=is_done, error=Killed))
    done = 2
    with suppress(Killed):
        for n in range(3, 6):
            await dying.write_state("t", {"n": n})
            done = n
        await dying.remove("t", [(await dying.history("t"))[-1].checkpoint_id])
    there = (await shelf_backend(shelf).load("t"))["n"]
    assert there in {done, done + 1}
    await shelf_backend(shelf).vacuum_report(30)
    assert (await shelf_backend(shelf).load("t"))["n"] == there
    shelf.age(86_400)
    await shelf_backend(shelf).vacuum_report(30)
    states = [await shelf_backend(shelf).load("t", it.checkpoint_id) for it in await history(shelf)]
    assert next(it["n"] for it in states) == there
    assert segments(shelf) == named(shelf)


@pytest.mark.anyio
async def test_a_list_has_the_sizes_of_versions_in_segments_without_reading_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf()
    with monkeypatch.context() as patch:
        patch.setattr(segmented, "TAIL_BYTES", 1)
        for n in range(6):
            await shelf_backend(shelf).write_state("t", {"n": n, "text": str(n) * 500})
            await shelf_backend(shelf).write_state("t", {"n": n}, namespace="sub")
    await shelf_backend(shelf).write_state("t", {"n": 7})
    assert len(segments(shelf)) > 1
    for it in segments(shelf):
        shelf.stored.pop(next(name for name in shelf.stored if name.endswith(it)))
    [found] = await shelf_backend(shelf).find_statuses(StatusesWanted(limit=9))
    assert 300 < (found.stored_bytes or 0) < 10_000


async def history(shelf: Shelf) -> list[Any]:
    return await shelf_backend(shelf).history("t", limit=1000)


def segments(shelf: Shelf) -> set[str]:
    return {it.rpartition("/")[2] for it in shelf.stored if "/segments/" in it}


def named(shelf: Shelf) -> set[str]:
    """The segments that heads name."""
    contents = ObjectsProbe(shelf).contents()
    heads = [it.describe() for name, it in contents.items() if "/heads/" in name]
    return {entry[0] for it in heads for entry in it["segments"]}


@pytest.mark.anyio
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_lost_reply_is_recognised(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 300)
    shelf = Shelf()
    losing = Fragile(shelf, at, is_done=True, error=ChangedError)
    losing.store = partial(Shelf.store, losing)  # type: ignore[method-assign]  # never conditional
    backend = shelf_backend(losing)
    for n in range(5):
        await backend.write_state("t", {"n": n})
    assert losing.failed
    assert len(await history(shelf)) == 5


@pytest.mark.anyio
async def test_a_lost_reply_is_recognised_after_other_writers() -> None:
    shelf = Shelf()
    await shelf_backend(shelf).write_state("t", {"n": 0})
    losing = Fragile(shelf, 1, is_done=True, error=ChangedError)
    backend, get = shelf_backend(losing), losing.get

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        if losing.failed and not others:
            others.append(1)
            for n in range(20):
                found = Shelf.get(losing, "p/v1/heads/t")
                assert found is not None
                asyncio_free_save(shelf, n)
        return get(*args, **kwargs)

    others: list[int] = []
    losing.get = meanwhile  # type: ignore[method-assign]
    await backend.write_state("t", {"mine": 1})
    assert len(await history(shelf)) == 22


@pytest.mark.anyio
async def test_a_lost_reply_that_is_asked_for_late_costs_no_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More saves came meanwhile than a head remembers, and it still names the segment."""
    shelf = Shelf()
    await shelf_backend(shelf).write_state("t", {"n": 0})
    losing = Fragile(shelf, 2, is_done=True, error=ChangedError)
    backend, get = shelf_backend(losing), losing.get

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        if losing.failed and segmented.TAIL_BYTES == 1:
            monkeypatch.setattr(segmented, "TAIL_BYTES", 32 * 1024)
            for n in range(segmented.TOKENS + 1):
                asyncio_free_save(shelf, n)
        return get(*args, **kwargs)

    losing.get = meanwhile  # type: ignore[method-assign]
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    await backend.write_state("t", {"mine": 1})
    assert segments(shelf) == named(shelf) != set()
    states = [await shelf_backend(shelf).load("t", it.checkpoint_id) for it in await history(shelf)]
    assert len(states) == segmented.TOKENS + 3


def asyncio_free_save(shelf: Shelf, n: int) -> None:
    """Save in another event loop, as another process does."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, shelf_backend(shelf).write_state("t", {"other": n})).result()


@pytest.mark.anyio
async def test_a_reader_whose_segment_is_gone_reads_the_head_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    state = await grown(shelf, 8)
    reader, get = shelf_backend(shelf), shelf.get
    merged = list[int]()

    def meanwhile(name: str, **known: Any) -> Any:
        if "/segments/" in name and not merged:
            merged.append(1)
            asyncio_free_save(shelf, 8)
            for it in list(shelf.stored):
                if "/segments/" in it and it.rpartition("/")[2] not in named(shelf):
                    del shelf.stored[it]
            shelf.stored.pop(name, None) if name.rpartition("/")[2] not in named(shelf) else None
        return get(name, **known)

    shelf.get = meanwhile  # type: ignore[method-assign]
    loaded = await reader.load("t")
    assert merged
    assert loaded in ({"other": 8}, state)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "call",
    [
        lambda it: it.load("t"),
        lambda it: it.heads(),
        lambda it: it.append("t", [NewMessage("new")]),
        lambda it: it.append("u", [NewMessage(1)], also={("t", ""): [NewMessage(2)]}, user_id="u"),
        lambda it: it.pop("t"),
        lambda it: it.delete("t"),
        lambda it: it.backend.write_state("t", {"n": 1}),
        lambda it: it.backend.recent(),
        lambda it: it.backend.copy_thread("t", "u"),
    ],
)
async def test_a_call_whose_segment_of_messages_is_gone_reads_the_head_again(
    call: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    await shelf_log(shelf).append("t", [NewMessage("first"), NewMessage("second")])
    get, popped = shelf.get, list[int]()

    def meanwhile(name: str, **known: Any) -> Any:
        if "/segments/" in name and not popped:
            popped.append(1)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, shelf_log(shelf).pop("t")).result()
        return get(name, **known)

    shelf.get = meanwhile  # type: ignore[method-assign]
    assert await call(shelf_log(shelf))
    assert popped


def shelf_log(shelf: Shelf) -> DocumentMessageLog:
    return DocumentMessageLog(shelf_backend(shelf), owns=False)


@pytest.mark.anyio
async def test_a_vacuum_names_a_segment_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    await grown(shelf, 3)
    ObjectsProbe(shelf).age(86_400)
    await shelf_backend(shelf).write_state("t", {"n": 1})
    for it in segments(shelf):
        shelf.stored.pop(next(name for name in shelf.stored if name.endswith(it)))
    with pytest.raises(IntegrityError, match=r"does not exist.*from the others: threads 0"):
        await shelf_backend(shelf).vacuum_report(0.5)


@pytest.mark.anyio
async def test_a_segment_that_is_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    await grown(shelf, 3)
    for it in list(shelf.stored):
        if "/segments/" in it:
            del shelf.stored[it]
    with pytest.raises(IntegrityError, match="does not exist, but the head"):
        await shelf_backend(shelf).load("t")


@pytest.mark.anyio
async def test_of_two_deletions_at_once_one_finds_the_thread() -> None:
    shelf = Shelf()
    await shelf_backend(shelf).write_state("t", {"n": 1})
    deleting, found = Fragile(shelf, 0, is_done=True, error=Killed), list[bool]()
    delete = deleting.delete

    def beside(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            removal = shelf_backend(shelf).remove_thread("t")
            found.append(pool.submit(asyncio.run, removal).result().existed)
        return delete(*args, **kwargs)

    deleting.delete = beside  # type: ignore[method-assign]
    assert (await shelf_backend(deleting).remove_thread("t")).existed is False
    assert found == [True]


@pytest.mark.anyio
async def test_a_refused_save_leaves_no_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf, put = Shelf(), Shelf.put

    def put_second(self: Shelf, name: str, content: bytes, **tag: Any) -> Any:
        if "/heads/" in name and not saved:
            saved.append(1)
            asyncio_free_save(shelf, 1)
        return put(self, name, content, **tag)

    saved: list[int] = []
    monkeypatch.setattr(Shelf, "put", put_second)
    await shelf_backend(shelf).write_state("t", {"n": 1})
    assert len(await history(shelf)) == 2
    assert segments(shelf) == named(shelf)


READS: dict[str, Callable[[Any], Any]] = {
    "load": lambda it: it.load("t", "v0"),
    "history": lambda it: it.history("t"),
    "query": lambda it: it.query("n", 1),
    "find": lambda it: it.find("user"),
    "delete": lambda it: it.delete("t", "v0"),
    "copy": lambda it: it.copy_thread("t", "copy"),
    "export": lambda it: it.read_thread("t"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("call", READS)
async def test_a_segment_in_the_place_of_another_one_is_refused(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    for n, state in enumerate(chat(2)):
        await shelf_backend(shelf).write_state("t", state, checkpoint_id=f"v{n}")
    first, second = (it for it in shelf.stored if "/segments/" in it)
    shelf.stored[first], shelf.stored[second] = shelf.stored[second], shelf.stored[first]
    with pytest.raises(IntegrityError, match="has other versions than its head says"):
        await READS[call](shelf_backend(shelf))


@pytest.mark.anyio
async def test_a_segment_in_the_place_of_messages_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf = Shelf()
    log = DocumentMessageLog(shelf_backend(shelf), owns=False)
    await log.append("t", [("first", "user"), ("second", "user")])
    await log.append("t", [("third", "user")])
    first, second = (it for it in shelf.stored if "/segments/" in it)
    shelf.stored[first] = shelf.stored[second]
    log = DocumentMessageLog(shelf_backend(shelf), owns=False)
    with pytest.raises(IntegrityError, match="has other messages than its head says"):
        await log.load("t")
    with pytest.raises(IntegrityError, match="has other messages than its head says"):
        await log.append("t", [("fourth", "user")])


@pytest.mark.anyio
async def test_heads_and_segments_of_another_format_are_refused() -> None:
    shelf = Shelf()
    backend = shelf_backend(shelf)
    for n in range(2):
        await backend.write_state("t", {"said": secrets.token_hex(20_000)}, checkpoint_id=f"v{n}")
    stored = dict(shelf.stored)
    for kind in (HEADS, SEGMENTS):
        names = [it for it in stored if kind in it]
        assert names
        for name in names:
            tag, at, content = stored[name]
            shelf.stored[name] = tag + 1, at, content.replace(b"locus-store 1", b"locus-store 2")
        there = dict(shelf.stored)
        other = shelf_backend(shelf)
        for call in (other.load("t", "v0"), other.copy_thread("t", "u")):
            with pytest.raises(SchemaError, match=r"written by a newer .*; upgrade this one"):
                await call
        if kind == HEADS:
            with pytest.raises(SchemaError, match="upgrade this one"):
                await other.save("t", {"n": 1})
        assert shelf.stored == there
        shelf.stored.update(stored)


@pytest.mark.anyio
async def test_a_writer_that_took_half_a_day_writes_its_segments_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf, store, hours = Shelf(), Shelf.store, [13, 0, 0, 0]

    def slowly(self: Shelf, name: str, content: bytes) -> None:
        store(self, name, content)
        passed.append(hours.pop(0))
        self.age(passed[-1] * 3600)

    passed: list[int] = []
    monkeypatch.setattr(Shelf, "store", slowly)
    monkeypatch.setattr(
        Shelf, "read_clock", lambda _: datetime.now(UTC) + timedelta(hours=sum(passed))
    )
    await shelf_backend(shelf).write_state("t", {"n": 0})
    assert len(passed) == 2
    assert await shelf_backend(shelf).load("t") == {"n": 0}


@pytest.mark.anyio
async def test_a_writer_that_was_suspended_before_its_head_loses_no_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The segments are a day old then, and another process has removed them."""
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    shelf, put = Shelf(), Shelf.put

    def put_late(self: Shelf, name: str, content: bytes, *, tag: Any) -> Any:
        if shelf.calls["store"] == 4 and not self.offset:
            self.offset = timedelta(hours=25)
            assert len(segments(shelf)) > len(named(shelf))
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, shelf_backend(shelf).vacuum_report(99)).result()
            assert segments(shelf) == named(shelf)
        return put(self, name, content, tag=tag)

    monkeypatch.setattr(Shelf, "put", put_late)
    backend = shelf_backend(shelf)
    for n in range(6):
        await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}")
    assert shelf.offset
    assert segments(shelf) == named(shelf)
    for n in range(6):
        assert await shelf_backend(shelf).load("t", f"v{n}") == {"n": n}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=255)))
def test_names_are_reversible_and_sort_as_ids_do(ids: list[str]) -> None:
    ids = [it for it in ids if not any("\ud800" <= c <= "\udfff" for c in it)]
    names = {it: encode_name(it, 1024) for it in ids}
    assert {it: decode_name(name) for it, name in names.items()} == {it: it for it in ids}
    assert sorted(ids) == sorted(ids, key=lambda it: names[it].encode())
    assert not any(c < " " for name in names.values() for c in name)


@pytest.mark.anyio
async def test_ids_that_are_too_long_for_a_name_are_listed() -> None:
    ids = [
        *("😀" * 254 + it for it in "ab"),
        " " * 255,
        "😀" * 127 + "\x01" * 128,
    ]
    backend = shelf_backend(Shelf(), prefix="p" * 500)
    for it in ids:
        await backend.write_state(it, {"id": it})
    assert sorted(await backend.list_threads(100)) == sorted(ids)
    assert sorted(await backend.scan(100)) == sorted(ids)
    for it in ids:
        assert await backend.load(it) == {"id": it}
