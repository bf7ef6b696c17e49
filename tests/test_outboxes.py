"""Changes of the message logs of several threads, over documents that fail between two puts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from shelf import Shelf, shelf_backend

from locus_store import BackendError, NewMessage, NotOwnerError
from locus_store.backends.documents import Body, DocumentBackend, outboxes
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.memory.backend import MemoryDocuments
from locus_store.types.messages import KeptMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.backends.documents import Tag
    from locus_store.types.messages import LogEdit

pytestmark = pytest.mark.anyio

OTHERS = ("a", "z")
ALSO = {(it, ""): [NewMessage("new", message_id="m")] for it in OTHERS}
ALSO_A, ALSO_Z = ({(it, ""): [NewMessage("alice's")]} for it in OTHERS)


class StoppedError(BaseException):
    """The process was killed."""


class Stopping(MemoryDocuments):
    """Documents whose writer is killed before or after its n-th put."""

    left: float = float("inf")
    is_lost = False
    """The last put is not done."""

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        if key == "":
            return super().put(key, body, tag=tag)
        self.left -= 1
        if self.left > 0:
            return super().put(key, body, tag=tag)
        if not self.is_lost:
            super().put(key, body, tag=tag)
        raise StoppedError


def new_log(documents: Any) -> DocumentMessageLog:
    """A log of another process."""
    return DocumentMessageLog(DocumentBackend(documents), owns=True)


async def contents(log: DocumentMessageLog, thread_id: str) -> list[Any]:
    return [it.content for it in await log.load(thread_id) or []]


async def listed(log: DocumentMessageLog) -> dict[str, Any]:
    heads = await log.heads()
    return {it.info.thread_id: [one.content for one in it.messages] for it in heads}


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("puts", range(1, 6))
@pytest.mark.parametrize("order", ["tza", "azt", "list", "append", "delete"])
async def test_a_change_that_was_cut_off_is_seen_whole_or_not_at_all(
    puts: int, is_lost: bool, order: str
) -> None:
    documents = Stopping()
    log = new_log(documents)
    for it in ("t", *OTHERS):
        await log.append(it, [NewMessage("old", message_id="m")])
    documents.left, documents.is_lost = puts, is_lost
    is_answered = True
    try:
        await log.append("t", [NewMessage("new", message_id="m")], also=ALSO)
    except StoppedError:
        is_answered = False
    documents.left = float("inf")

    log = new_log(documents)
    seen: dict[str, Any] = {}
    if order == "list":
        await listed(log)  # reads one thread after the other, and applies what it finds
        seen = await listed(log)
    elif order == "append":
        await log.append("t", [NewMessage("newer")])
        seen = {it: (await contents(log, it))[:1] for it in "taz"}
    elif order == "delete":
        await log.delete("t")
        seen = {it: await contents(log, it) for it in OTHERS}
    else:
        seen = {it: await contents(log, it) for it in order}
        # What is read before the thread that commits may be older, never a part of a newer change.
        seen |= {it: await contents(log, it) for it in OTHERS}
    assert len({tuple(it) for it in seen.values()}) == 1, seen
    assert not is_answered or seen["a"] == ["new"]
    for it in await log.backend.scan():
        found = log.backend._threads.read_parsed(documents, it)
        assert found is not None
        assert found.thread.outbox is None


async def test_an_outbox_is_applied_once() -> None:
    documents = Stopping()
    log = new_log(documents)
    documents.left, documents.is_lost = 3, False  # all but the removal of the outbox
    with pytest.raises(StoppedError):
        await log.append(
            "t", [NewMessage("new")], also={("a", ""): [NewMessage(1, message_id="m")]}
        )
    documents.left = float("inf")
    other = new_log(documents)
    await other.append("a", [NewMessage(2, message_id="m")])
    assert await contents(other, "t") == ["new"]
    assert await contents(other, "a") == [2]


async def remove_in_turn(log: DocumentMessageLog) -> None:
    async with log.turn("z"):
        await log.backend.remove_thread("z")


async def replace_expired(log: DocumentMessageLog) -> None:
    later = datetime.now(UTC) + timedelta(hours=2)
    log.backend._documents.read_clock = lambda: later  # type: ignore[method-assign]
    log.ttl_seconds = None
    await log.append("z", [NewMessage("newer")])


@pytest.mark.parametrize(
    ("remove", "left"),
    [
        (lambda it: it.delete("z"), []),
        (lambda it: it.backend.remove_thread("z"), []),
        (remove_in_turn, []),
        (replace_expired, ["newer"]),
    ],
)
async def test_what_an_outbox_has_brought_stays_removed(remove: Any, left: list[str]) -> None:
    documents = Stopping()
    log = new_log(documents)
    log.ttl_seconds = 3600 if left else None
    documents.left, documents.is_lost = 3, True  # all but the removal of the outbox
    with pytest.raises(StoppedError):
        await log.append("t", [NewMessage(1)], also={("z", ""): [NewMessage("secret")]})
    documents.left = float("inf")
    assert await contents(log, "z") == ["secret"]
    await remove(log)
    await log.load("t")
    assert await contents(log, "z") == left


async def test_tokens_of_removed_outboxes_are_forgotten() -> None:
    documents = MemoryDocuments()
    log = new_log(documents)
    for number in range(3 * outboxes.MOST_DELIVERED):
        also = {("shared", ""): [NewMessage(number, message_id="m")]}
        await log.append(f"t{number}", [NewMessage(1)], also=also)
    found = new_log(documents).backend._threads.read_parsed(documents, "shared")
    assert found is not None
    assert len(found.thread.delivered) <= outboxes.MOST_DELIVERED
    assert await contents(new_log(documents), "shared") == [3 * outboxes.MOST_DELIVERED - 1]


async def test_a_thread_that_another_user_claims_meanwhile_is_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both users were told that their messages were stored in the thread."""
    documents = MemoryDocuments()
    look = DocumentMessageLog._is_unclaimed

    def look_early(log: DocumentMessageLog, edit: LogEdit) -> bool:
        monkeypatch.undo()
        is_unclaimed = look(log, edit)
        faster = new_log(documents).append("z", [NewMessage("bob's")], user_id="bob")
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, faster).result()
        return is_unclaimed

    monkeypatch.setattr(DocumentMessageLog, "_is_unclaimed", look_early)
    with pytest.raises(NotOwnerError):
        await new_log(documents).append("t", [NewMessage(1)], user_id="alice", also=ALSO_Z)
    assert await contents(new_log(documents), "z") == ["bob's"]
    assert await contents(new_log(documents), "t") == []


async def test_a_thread_that_was_deleted_before_the_delivery_may_be_another_users() -> None:
    documents = Stopping()
    documents.left = 4  # the claims of t and z, the commit, and the delivery
    documents.is_lost = True
    with pytest.raises(StoppedError):
        await new_log(documents).append("t", [NewMessage(1)], user_id="alice", also=ALSO_Z)
    documents.left = float("inf")
    log = new_log(documents)
    await log.backend.remove_thread("z")
    await log.append("z", [NewMessage("bob's")], user_id="bob")
    assert await contents(log, "t") == [1]
    assert await contents(log, "z") == ["bob's"]


async def test_of_users_who_append_beside_each_other_at_once_one_wins() -> None:
    """Both were refused, and each one's thread was the other's."""
    both = threading.Barrier(2)

    class InStep(MemoryDocuments):
        """Documents whose writers wait for each other, until one of them ends."""

        def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
            with suppress(threading.BrokenBarrierError):
                both.wait(timeout=10)
            return super().put(key, body, tag=tag)

    def append(user: str, other: str) -> str | None:
        said = [NewMessage(user)]
        try:
            log = new_log(documents)
            asyncio.run(log.append(user, said, user_id=user, also={(other, ""): said}))
        except NotOwnerError:
            return None
        finally:
            both.abort()
        return user

    documents = InStep()
    pairs = ("alice", "bob"), ("bob", "alice")
    answers = await asyncio.gather(*(asyncio.to_thread(append, *it) for it in pairs))
    assert answers.count(None) == 1
    for it in ("alice", "bob"):
        assert await contents(new_log(documents), it) == [one for one in answers if one]


async def test_a_change_that_is_refused_at_its_commit_leaves_no_claim() -> None:
    class Losing(MemoryDocuments):
        """Documents in which another user is faster than the commit."""

        is_slow = True

        def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
            if key == "t" and self.is_slow:
                self.is_slow = False
                faster = new_log(self).append("t", [NewMessage("bob's")], user_id="bob")
                with ThreadPoolExecutor() as pool:
                    pool.submit(asyncio.run, faster).result()
            return super().put(key, body, tag=tag)

    log = new_log(Losing())
    with pytest.raises(NotOwnerError):
        await log.append("t", [NewMessage(1)], user_id="alice", also=ALSO_A)
    assert await log.backend.scan() == ["t"]


@pytest.mark.parametrize("is_used", [True, False])
async def test_the_claim_of_a_killed_change_expires_unless_its_thread_is_used(
    is_used: bool,
) -> None:
    documents = Stopping()
    log = new_log(documents)
    documents.left = 1  # the claim of a
    with pytest.raises(StoppedError):
        await log.append("t", [NewMessage(1)], user_id="alice", also=ALSO_A)
    documents.left = float("inf")
    log = new_log(documents)
    assert await log.backend.scan() == ["a"]
    if is_used:
        await log.backend.copy_thread("a", "copy")
        for it in ("a", "copy"):
            await log.append(it, [NewMessage("hers")], user_id="alice")
    later = datetime.now(UTC) + timedelta(days=2)
    documents.read_clock = lambda: later  # type: ignore[method-assign]
    await log.backend.expire()
    assert await log.backend.scan() == (["a", "copy"] if is_used else [])
    assert await contents(log, "a") == (["hers"] if is_used else [])


async def test_changes_of_shared_threads_at_once_are_all_applied() -> None:
    documents = MemoryDocuments()

    def write(number: int) -> None:
        async def run() -> None:
            log = new_log(documents)
            for step in range(20):
                also = {
                    ("shared", ""): [NewMessage([number, step])],
                    ("beside", ""): [NewMessage(1)],
                }
                await log.append(f"t{number % 2}", [NewMessage([number, step])], also=also)
                await log.load(f"t{(number + 1) % 2}")

        asyncio.run(run())

    await asyncio.gather(*(asyncio.to_thread(write, it) for it in range(4)))
    log = new_log(documents)
    found = await contents(log, "shared")
    assert sorted(found) == [[number, step] for number in range(4) for step in range(20)]
    for number in range(4):
        steps = [step for it, step in found if it == number]
        assert all(one < other for one, other in pairwise(steps))
    assert len(await contents(log, "beside")) == len(found)


async def test_threads_that_change_each_other_do_not_wait_for_each_other() -> None:
    documents = MemoryDocuments()

    def write(one: str, other: str) -> None:
        async def run() -> None:
            log = new_log(documents)
            for step in range(30):
                await log.append(one, [NewMessage(step)], also={(other, "in"): [NewMessage(step)]})

        asyncio.run(run())

    both = [("a", "b"), ("b", "a")]
    await asyncio.gather(*(asyncio.to_thread(write, *it) for it in both))
    log = new_log(documents)
    for it in "ab":
        assert await contents(log, it) == list(range(30))
        assert [one.content for one in await log.load(it, namespace="in") or []] == [*range(30)]


class Failing(MemoryDocuments):
    """Documents of which one cannot be written."""

    broken: str | None = None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        if key == self.broken:
            raise BackendError("it is read-only")
        return super().put(key, body, tag=tag)


async def test_a_change_that_is_not_applied_everywhere_is_told() -> None:
    documents = Failing()
    log = new_log(documents)
    documents.broken = "z"
    with pytest.raises(BackendError, match=r"stored with thread 't'.*'z'.*do not send it again"):
        await log.append("t", [NewMessage("new")], also=ALSO)
    with pytest.raises(BackendError, match="read-only"):
        await log.load("t")
    documents.broken = None
    assert await contents(log, "t") == ["new"]
    assert [await contents(log, it) for it in OTHERS] == [["new"], ["new"]]


async def test_an_expired_thread_gives_its_outbox_before_it_is_removed() -> None:
    documents = Stopping()
    log = new_log(documents)
    log.ttl_seconds = 0.05
    documents.left = 1
    kept = {(it, ""): KeptMessages([NewMessage("new")]) for it in OTHERS}
    with pytest.raises(StoppedError):
        await log.append("t", [NewMessage("new")], also=kept)
    documents.left = float("inf")
    log = new_log(documents)
    await asyncio.sleep(0.1)
    await log.backend.expire()
    assert await contents(log, "t") == []
    assert [await contents(log, it) for it in OTHERS] == [["new"], ["new"]]


async def test_another_users_thread_is_refused_before_anything_is_written() -> None:
    log = new_log(MemoryDocuments())
    await log.append("z", [NewMessage(1)], user_id="v")
    with pytest.raises(NotOwnerError):
        await log.append("t", [NewMessage(2)], also=ALSO, user_id="u")
    assert await log.load("t") is None
    assert await log.load("a") is None


@pytest.mark.parametrize("make", [lambda: new_log(MemoryDocuments()), lambda: _on_objects(Shelf())])
async def test_an_append_writes_no_more_as_the_log_grows(
    make: Callable[[], DocumentMessageLog],
) -> None:
    log, sizes = make(), []
    documents = log.backend._documents
    put = documents.put

    def counted(key: str, body: Body, *, tag: Tag | None) -> Tag:
        sizes.append(len(body.rest))
        return put(key, body, tag=tag)

    documents.put = counted  # type: ignore[method-assign]
    for number in range(1000):
        await log.append("t", [NewMessage({"said": f"{number} " + "x" * 200})])
    assert await contents(log, "t") == [{"said": f"{n} " + "x" * 200} for n in range(1000)]
    assert max(sizes[-100:]) < 60_000


def _on_objects(shelf: Shelf) -> DocumentMessageLog:
    return DocumentMessageLog(shelf_backend(shelf), owns=True)
