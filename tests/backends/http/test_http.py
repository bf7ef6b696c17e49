"""The client over HTTP: requests per call, lost replies, failures, loops and forks."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from answered import answered_by
from lazily import TESTS_RUN
from services import Service, parts

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InMemoryMessageLog,
    InvalidArgumentError,
    MemoryBackend,
    NewMessage,
    Quota,
    QuotaError,
    SerializationError,
    open_checkpointer,
    open_message_log,
    open_saver,
    open_store,
)
from locus_store.blocking import BlockingCheckpointer

if TESTS_RUN:
    import httpx

    from locus_store import http_checkpointer
    from locus_store.backends.http import HTTPBackend
    from locus_store.backends.http.backend import HTTPMessageLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

LONG = "x" * 200
SECRET = "s3cret"  # noqa: S105  (a test)


@pytest.fixture
def inner() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def service(inner: MemoryBackend) -> Iterator[Service]:
    made = Service(inner)
    yield made
    made.stop()


@pytest.fixture
def with_logs(inner: MemoryBackend) -> Iterator[Service]:
    made = Service(inner, messages=InMemoryMessageLog(backend=inner))
    yield made
    made.stop()


@pytest.fixture
async def backend(service: Service) -> AsyncIterator[HTTPBackend]:
    async with HTTPBackend(service.url) as made:
        await made.open()
        service.asked.clear()
        yield made


# --- requests per call


async def test_a_save_and_a_load_are_one_request_each(
    service: Service, backend: HTTPBackend
) -> None:
    said = [f"{n} {LONG}" for n in range(50)]
    for count in (1, 2, 3, 49, 50):
        await backend.save("t", {"said": said[:count]})
    assert service.asked == ["/v1/commit"] * 5
    service.asked.clear()
    async with HTTPBackend(service.url) as other:
        assert await other.load("t") == {"said": said}
    assert service.asked == ["/v1", "/v1/fetch"]


async def test_a_known_head_comes_without_its_payload(
    service: Service, backend: HTTPBackend
) -> None:
    state = {"said": os.urandom(100_000).hex()}
    await backend.save("t", state)
    service.asked.clear()
    with service.counting() as sent:
        assert await backend.load("t") == state
    assert service.asked == ["/v1/fetch_head"]
    assert sum(sent) < 2_000


async def test_an_older_known_version_comes_with_its_tail_only(
    service: Service, backend: HTTPBackend
) -> None:
    said = [os.urandom(1_000).hex() for _ in range(60)]
    await backend.save("t", {"said": said[:59]})
    async with HTTPBackend(service.url) as other:
        await other.load("t")
        await other.save("t", {"said": said})
    with service.counting() as sent:
        assert await backend.load("t") == {"said": said}
    assert sum(sent) < 5_000


async def test_a_save_whose_frames_do_not_do_takes_two_requests(
    service: Service, backend: HTTPBackend
) -> None:
    said = [f"{n} {LONG}" for n in range(50)]
    await backend.save("t", {"said": said[:49]})
    async with HTTPBackend(service.url) as other:
        await other.save("t", {"said": said[::-1]})
    service.asked.clear()
    await backend.save("t", {"said": said})
    assert service.asked == ["/v1/commit"] * 2
    assert await backend.load("t") == {"said": said}


# --- failures


class Failing:
    """A transport that fails before or after the service was asked, and then stops failing."""

    def __init__(self, *failures: str) -> None:
        self.left = [*failures]
        self._real = httpx.AsyncHTTPTransport()
        self.sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        kind = self.left.pop(0) if self.left and request.url.path != "/v1" else ""
        if kind == "refused":
            raise httpx.ConnectError("refused")
        if kind in {"503", "429", "401", "403", "500", "404"}:
            return httpx.Response(int(kind), request=request, headers={"retry-after": "0"})
        if kind == "html":
            return httpx.Response(200, html="<p>hello", request=request)
        response = await self._real.handle_async_request(request)
        if kind == "lost":
            await response.aread()
            raise httpx.ReadTimeout("the reply was lost")
        if kind == "json":
            return httpx.Response(
                200, content=b'{"cut', headers={"content-type": "application/json"}
            )
        return response

    async def aclose(self) -> None:
        await self._real.aclose()

    __aenter__: Callable[..., Any]


@asynccontextmanager
async def failing(service: Service, *failures: str, **options: Any) -> AsyncIterator[Any]:
    """Yield a backend whose next calls fail so, and its transport."""
    transport: Any = type("T", (Failing, httpx.AsyncBaseTransport), {})(*failures)
    async with transport:
        yield answered_by(transport, HTTPBackend(service.url, **options)), transport


@pytest.mark.parametrize("kind", ["refused", "lost", "503", "429", "json"])
async def test_a_save_whose_reply_was_lost_is_one_version(service: Service, kind: str) -> None:
    async with failing(service, kind, kind) as (backend, _):
        if kind == "json":
            with pytest.raises(BackendError):
                await backend.save("t", {"n": 1}, checkpoint_id="v")
            with pytest.raises(BackendError):
                await backend.save("t", {"n": 1}, checkpoint_id="v")
        assert await backend.save("t", {"n": 1}, checkpoint_id="v") == "v"
        assert [it.checkpoint_id for it in await backend.history("t")] == ["v"]


@pytest.mark.parametrize("kind", ["401", "403", "404", "500", "503", "429", "html", "json", "lost"])
async def test_a_load_that_fails_raises_and_is_never_an_empty_conversation(
    service: Service, kind: str
) -> None:
    async with failing(service, *[kind] * 9, retry_seconds=0.0) as (backend, _):
        with pytest.raises((BackendError, ConnectionFailedError)):
            await backend.load("t")


async def test_no_service_at_the_url_is_not_an_empty_conversation(service: Service) -> None:
    async with HTTPBackend(service.url + "/elsewhere") as backend:
        with pytest.raises(ConnectionFailedError, match="no locus-store service"):
            await backend.load("t")


async def test_what_may_not_be_done_twice_is_not_sent_again(service: Service) -> None:
    async with failing(service, "lost") as (backend, transport):
        await backend.save("t", {"n": 1}, checkpoint_id="v")
    async with failing(service, "lost") as (backend, transport):
        with pytest.raises(ConnectionFailedError):
            await backend.delete("t")
        assert transport.sent == 2  # the description, and the call
        assert not await backend.exists("t")


async def test_an_append_whose_replies_are_lost_is_repeated_until_one_comes(
    with_logs: Service,
) -> None:
    async with failing(with_logs, *["lost"] * 3) as (backend, transport):
        log = HTTPMessageLog(backend=backend)
        await log.append("t", [NewMessage({"n": 1}), NewMessage({"n": 2})])
        assert transport.sent == 5  # the description, and the call four times
        assert await log.contents("t") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("kind", ["lost", "503"])
async def test_a_write_that_may_have_been_done_says_so(with_logs: Service, kind: str) -> None:
    async with failing(with_logs, *[kind] * 9, retry_seconds=0.0) as (backend, _):
        log = HTTPMessageLog(backend=backend)
        with pytest.raises(ConnectionFailedError, match="may have been written"):
            await log.append("t", [NewMessage(1)], expected_revision=0)
        with pytest.raises(ConnectionFailedError) as caught:
            await log.load("t")
        assert "written" not in str(caught.value)


async def test_a_refusal_of_a_repeat_does_not_say_that_nothing_was_written(tmp_path: Path) -> None:
    behind, _, log = parts(tmp_path / "a.db")
    service = Service(behind, messages=log)
    texts = [os.urandom(2000).hex() for _ in range(4)]

    async def leave_room(size: int) -> None:
        await behind.set_quota(Quota(bytes=(await behind.get_quota()).bytes + size * 3 // 2))

    await behind.save("t", {"text": texts[0]})
    size = (await behind.get_quota()).bytes
    await leave_room(size)
    async with failing(service, "lost") as (backend, _):
        with pytest.raises(ConnectionFailedError, match="may have been written"):
            await backend.save("t", {"text": texts[1]})
        assert await backend.load("t") == {"text": texts[1]}
        with pytest.raises(QuotaError):
            await backend.save("t", {"text": texts[2]})
    await leave_room(size)
    async with failing(service, "lost") as (backend, _):
        logs = HTTPMessageLog(backend=backend)
        with pytest.raises(ConnectionFailedError, match="may have been written"):
            await logs.append("t", [NewMessage(texts[3])])
        assert await logs.contents("t") == [texts[3]]
    service.stop()


async def test_a_write_that_was_not_sent_does_not_say_that_it_may_be_there(
    with_logs: Service,
) -> None:
    async with failing(with_logs, *["refused"] * 9, retry_seconds=0.0) as (backend, _):
        with pytest.raises(ConnectionFailedError) as caught:
            await HTTPMessageLog(backend=backend).append("t", [NewMessage(1)], expected_revision=0)
    assert "written" not in str(caught.value)


async def test_an_unreachable_service_is_named_without_its_token() -> None:
    checkpointer = http_checkpointer("http://127.0.0.1:9", token=SECRET, retry_seconds=0.0)
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:9") as caught:
        await checkpointer.load("t")
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(checkpointer)


@pytest.mark.parametrize("token", ["SECRET\n", "SECRET x", "SECR\u00c9T", "", 7])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        HTTPBackend("http://h", token=token)
    assert "SECR" not in str(caught.value)


def test_a_url_that_is_wrong_is_not_shown_with_its_password() -> None:
    for url in ("http://user:SECRET@h:port", "http://user:SECRET@h"):
        with pytest.raises(InvalidArgumentError) as caught:
            HTTPBackend(url)
        assert "SECRET" not in str(caught.value)


async def test_a_conflict_is_the_same_class_with_its_ids(service: Service) -> None:
    one, other = (http_checkpointer(service.url, state_type=dict) for _ in range(2))
    await one.save({"n": 0}, "t", "v0")
    mine, theirs = await one.load("t"), await other.load("t")
    await other.save({**theirs, "n": 1}, "t", "v1")
    mine["n"] = 2
    with pytest.raises(ConflictError) as caught:
        await one.save(mine, "t")
    assert (caught.value.head_id, caught.value.parent_id) == ("v1", "v0")
    await one.close()
    await other.close()


async def test_a_body_above_the_services_limit_is_refused(inner: MemoryBackend) -> None:
    service = Service(inner, max_body=2_000)
    async with HTTPBackend(service.url) as backend:
        with pytest.raises(SerializationError, match="2,000 bytes"):
            await backend.save("t", {"body": os.urandom(4_000).hex()})
        assert await backend.load("t") is None
    service.stop()


# --- loops, cancellation, forks


async def test_a_cancelled_save_completes(service: Service) -> None:
    async with HTTPBackend(service.url) as backend:
        await backend.open()
        task = asyncio.create_task(backend.save("t", {"n": 1}, checkpoint_id="v"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with HTTPBackend(service.url) as backend:
        assert await backend.exists("t", "v")


def test_one_object_serves_one_loop_after_the_other(service: Service) -> None:
    backend = HTTPBackend(service.url)
    for n in range(3):
        asyncio.run(backend.save("t", {"n": n}, checkpoint_id=f"v{n}"))
    assert asyncio.run(backend.load("t")) == {"n": 2}


def test_a_forked_child_has_connections_of_its_own(service: Service) -> None:
    backend = HTTPBackend(service.url)

    async def fork() -> None:
        await backend.save("t", {"n": 0}, checkpoint_id="parent")
        if not (pid := os.fork()):
            code = 1
            try:
                asyncio._set_running_loop(None)
                asyncio.run(backend.save("t", {"n": 1}, checkpoint_id="child"))
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert status == 0
        await backend.save("t", {"n": 2}, checkpoint_id="after")
        assert [it.checkpoint_id for it in await backend.history("t")] == [
            *("after", "child", "parent"),
        ]
        await backend.close()

    asyncio.run(fork())


def test_the_blocking_facade_works_over_it(service: Service) -> None:
    with BlockingCheckpointer(http_checkpointer(service.url, state_type=dict)) as checkpointer:
        checkpointer.save({"n": 1}, "t")
        assert checkpointer.load("t") == {"n": 1}


# --- opening


async def test_urls_open_every_object(service: Service) -> None:
    assert (await open_checkpointer(service.url, state_type=dict).list_threads()) == []
    async with open_saver(service.url + "?timeout=3") as saver:
        assert saver.backend.capabilities.branching
    for opened in (open_store(service.url), open_message_log(service.url)):
        with pytest.raises(Exception, match="this service has no"):
            await opened.open()
        await opened.close()


@pytest.mark.parametrize(
    "wrong",
    ["", "x", "ftp://h", "http://", "http://h/#f", "http://h:99999", "http://u:p@h", None, 7],
)
def test_a_base_url_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        HTTPBackend(wrong)


async def test_what_the_service_cannot_do_is_not_declared(service: Service) -> None:
    backend = HTTPBackend(service.url)
    assert backend.capabilities.search
    await backend.open()
    assert not backend.capabilities.tenants
    assert not backend.capabilities.messages
    await backend.close()


def test_an_answer_of_a_later_version_may_have_more_fields() -> None:
    from locus_store.wire.bodies import Payloads
    from locus_store.wire.calls import BY_PATH

    value = json.loads('{"existed": true, "versions": 1, "later": 1}')
    found = BY_PATH["/v1/remove_thread"].answer.read(value, Payloads([]))
    assert found == (True, 1)
