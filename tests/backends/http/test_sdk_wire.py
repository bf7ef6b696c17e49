"""The Locus SDK's own client against our service, and our client against a small foreign one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from answered import answered_by
from lazily import TESTS_RUN
from services import Service

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    Encryption,
    InMemoryStore,
    InvalidArgumentError,
    LocalKeyRing,
    MemoryBackend,
    UnsupportedError,
)
from locus_store.testing import MinimalCheckpointerContract
from locus_store.testing.kit import HOSTILE_IDS

if TESTS_RUN:
    import httpx
    from locus.core.messages import Message
    from locus.core.state import AgentState
    from locus.memory.backends.http import HTTPCheckpointer as SdkCheckpointer

    from locus_store import http_checkpointer
    from locus_store.backends.http import HTTPBackend, remote
    from locus_store.encryption import create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

IDS = [it for it in HOSTILE_IDS if it not in {".", ".."}]
"""The ids that that client can send: HTTP clients remove these two segments of a path."""


@pytest.fixture
def inner() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def service(inner: MemoryBackend) -> Iterator[Service]:
    made = Service(inner)
    yield made
    made.stop()


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[SdkCheckpointer]:
    made = SdkCheckpointer(service.url)
    yield made
    await made.close()


def saying(*texts: str) -> AgentState:
    return AgentState(messages=tuple(map(Message.user, texts)))


def texts(state: AgentState | None) -> list[str] | None:
    return None if state is None else [it.content for it in state.messages]


# --- its client, our service


async def test_the_sdks_client_saves_loads_lists_and_deletes(sdk: SdkCheckpointer) -> None:
    assert await sdk.health_check()
    assert await sdk.load("t") is None
    assert await sdk.list_checkpoints("t") == []
    for n in range(3):
        assert await sdk.save(saying(f"{n}"), "t", f"v{n}", {"n": n}) == f"v{n}"
    assert await sdk.list_checkpoints("t") == ["v2", "v1", "v0"]
    assert await sdk.list_checkpoints("t", limit=2) == ["v2", "v1"]
    assert texts(await sdk.load("t")) == ["2"]
    assert texts(await sdk.load("t", "v0")) == ["0"]
    assert await sdk.load("t", "unknown") is None
    assert await sdk.delete("t", "v2")
    assert not await sdk.delete("t", "v2")
    assert texts(await sdk.load("t")) == ["1"]
    assert await sdk.delete("t")
    assert await sdk.load("t") is None


async def test_hostile_ids_name_threads_and_checkpoints_of_their_own(sdk: SdkCheckpointer) -> None:
    for name in IDS:
        await sdk.save(saying(name), name, name)
    for name in IDS:
        assert await sdk.list_checkpoints(name) == [name], ascii(name)
        assert texts(await sdk.load(name, name)) == [name], ascii(name)
    for name in IDS:
        assert await sdk.delete(name, name), ascii(name)


async def test_what_is_sent_for_the_two_other_ids_touches_nothing(
    sdk: SdkCheckpointer, service: Service, inner: MemoryBackend
) -> None:
    await sdk.save(saying("kept"), "t", "v")
    for name in (".", ".."):
        with pytest.raises(httpx.HTTPStatusError):
            await sdk.save(saying("lost"), name, "v")
        for thread, checkpoint in ((name, None), (name, "v"), ("t", ".."), (name, name)):
            assert not await sdk.delete(thread, checkpoint)
            assert await sdk.load(thread, checkpoint) is None
    assert inner.thread_ids() == ["t"]
    assert await sdk.list_checkpoints("t") == ["v"]


async def test_the_sdks_client_sends_a_checkpoint_named_dot_as_its_thread(
    sdk: SdkCheckpointer, service: Service
) -> None:
    """No service can tell it from a call for the thread: docs/http.md warns of it."""
    await sdk.save(saying("kept"), "t", "v")
    await sdk.delete("t", ".")
    assert service.asked[-1] == "/threads/t/checkpoints"


async def test_both_clients_see_the_same_threads(sdk: SdkCheckpointer, service: Service) -> None:
    await sdk.save(saying("theirs"), "t", "v")
    async with http_checkpointer(service.url, state_type=AgentState) as ours:
        state = await ours.load("t")
        assert texts(state) == ["theirs"]
        await ours.save(state.with_message(Message.user("ours")), "t")
    assert texts(await sdk.load("t")) == ["theirs", "ours"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/threads", 404),
        ("GET", "/threads/", 404),
        ("GET", "/threads/t", 404),
        ("GET", "/threads/t/", 404),
        ("DELETE", "/threads//checkpoints", 404),
        ("DELETE", "/threads/t/checkpoints/", 404),
        ("GET", "/threads/t/checkpoints/a/b", 404),
        ("GET", "/threads/t/checkpoints?limit=-1", 422),
        ("GET", "/threads/t/checkpoints?limit=x", 422),
        ("GET", "/threads/t/checkpoints?other=1", 422),
        ("GET", "/threads/%ff/checkpoints", 422),
        ("GET", "/threads/a%00b/checkpoints", 422),
        ("GET", "/threads/" + "t" * 256 + "/checkpoints", 422),
        ("GET", "/threads/t/checkpoints?limit=" + "9" * 5_000, 422),
        ("PUT", "/threads/t/checkpoints", 405),
        ("POST", "/threads/t/checkpoints/v", 405),
        ("POST", "/threads/t/checkpoints", 422),
    ],
)
async def test_what_is_not_of_the_wire_is_refused(
    service: Service, inner: MemoryBackend, method: str, path: str, status: int
) -> None:
    await inner.save("t", {"n": 1})
    async with httpx.AsyncClient() as client:
        answer = await client.request(method, service.url + path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "message", "fields"}
    assert inner.version_count("t") == 1


# --- our client, a foreign service


class Foreign:
    """A service that is written from the facts of that wire only, as a transport of httpx."""

    def __init__(self, form: str = "wrapped") -> None:
        from httpx import Response

        self.response = Response
        self.threads: dict[str, dict[str, Any]] = {}
        self.form = form
        self.failing: int | None = None
        self.said = b""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        if path == "/health":
            return self.response(200, json={})
        found = re.fullmatch(r"/threads/([^/]+)/checkpoints(?:/([^/]+))?", path)
        if found is None:
            return self.response(404)
        if self.failing is not None:
            return self.response(self.failing, content=self.said)
        thread, checkpoint = (it and unquote(it) for it in found.groups())
        return self._answer(request, str(thread), checkpoint)

    def _answer(self, request: httpx.Request, thread: str, name: str | None) -> httpx.Response:
        rows = self.threads.setdefault(thread, {})
        if request.method == "POST":
            import json

            row = json.loads(request.content)
            rows.pop(row["checkpoint_id"], None)
            rows[row["checkpoint_id"]] = row
            return self.response(201, json={"checkpoint_id": row["checkpoint_id"]})
        if request.method == "DELETE":
            there = bool(rows) if name is None else rows.pop(name, None) is not None
            if name is None:
                rows.clear()
            return self.response(204 if there else 404)
        if name is not None:
            return self._one(rows.get(name))
        limit = int(request.url.params.get("limit", 10))
        return self._list(list(reversed(rows))[:limit])

    def _one(self, row: dict[str, Any] | None) -> httpx.Response:
        if row is None:
            return self.response(404)
        return self.response(200, json=row if self.form != "bare" else row["state"])

    def _list(self, names: list[str]) -> httpx.Response:
        if self.form == "bare":
            return self.response(200, json=names)
        rows = [{"checkpoint_id": it} for it in names]
        return self.response(200, json={"data" if self.form == "data" else "checkpoints": rows})


def over(foreign: Foreign, **options: Any) -> Any:
    made = http_checkpointer("http://foreign", **options)
    answered_by(httpx.MockTransport(foreign), made.backend)
    return made


class TestForeign(MinimalCheckpointerContract):
    @pytest.fixture
    def reopen(self) -> Any:
        foreign = Foreign()
        return lambda **options: over(foreign, state_type=self.state_type, **options)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture(autouse=True)
    async def known(self, checkpointer: Any) -> None:
        """Its capabilities are known once it was asked."""
        await checkpointer.open()


async def test_a_foreign_service_is_sent_nothing_by_a_client_that_encrypts() -> None:
    foreign = Foreign()
    keys = Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())
    backend = answered_by(
        httpx.MockTransport(foreign), create(HTTPBackend, "http://foreign", encryption=keys)
    )
    for call in (backend.open(), backend.save("t", {"n": 0})):
        with pytest.raises(UnsupportedError, match="in clear"):
            await call
    assert foreign.threads == {}


@pytest.mark.parametrize("form", ["wrapped", "data", "bare"])
async def test_a_foreign_service_keeps_states(form: str) -> None:
    foreign = Foreign(form)
    one, other = (over(foreign, state_type=dict) for _ in range(2))
    await one.save({"n": 0}, "a/b", "v0")
    state = await one.load("a/b")
    state["n"] = 1
    await one.save(state, "a/b", "v1")
    assert await other.load("a/b") == {"n": 1}
    assert await other.load("a/b", "v0") == {"n": 0}
    assert await other.load("a/b", "none") is None
    assert await other.list_checkpoints("a/b") == ["v1", "v0"]
    assert not one.capabilities.search
    with pytest.raises(UnsupportedError):
        await one.search("x")
    assert await one.delete("a/b", "v1")
    assert await one.delete("a/b")
    assert await other.load("a/b") is None


async def test_a_second_writer_on_a_foreign_service_is_a_conflict() -> None:
    foreign = Foreign()
    one, other = (over(foreign, state_type=dict) for _ in range(2))
    await one.save({"n": 0}, "t", "v0")
    mine, theirs = await one.load("t"), await other.load("t")
    theirs["n"] = 1
    await other.save(theirs, "t", "v1")
    theirs["n"] = 2
    await other.save(theirs, "t", "v2")  # its own work
    mine["n"] = 3
    with pytest.raises(ConflictError) as caught:
        await one.save(mine, "t")
    assert (caught.value.head_id, caught.value.parent_id) == ("v2", "v0")


async def test_what_a_foreign_service_cannot_keep_is_refused() -> None:
    checkpointer = over(Foreign(), state_type=dict, keep_last=2)
    with pytest.raises(UnsupportedError, match="keep_last"):
        await checkpointer.save({}, "t")
    for name in (".", ".."):
        with pytest.raises(InvalidArgumentError):
            await over(Foreign()).load(name)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_foreign_service_that_fails_is_not_an_empty_conversation(status: int) -> None:
    foreign = Foreign()
    checkpointer = over(foreign, state_type=dict, retry_seconds=0.0)
    await checkpointer.save({"n": 1}, "t", "v")
    foreign.failing = status
    for call in (checkpointer.load("t"), checkpointer.load("t", "v"), checkpointer.exists("t")):
        with pytest.raises((BackendError, ConnectionFailedError)):
            await call


@pytest.mark.parametrize("said", [b"", b"{}", b"null", b"[]", b'{"error":"maintenance"}', b"5"])
async def test_an_answer_that_holds_nothing_is_not_an_empty_conversation(said: bytes) -> None:
    foreign = Foreign()
    checkpointer = over(foreign, state_type=dict, retry_seconds=0.0)
    await checkpointer.save({"n": 1}, "t", "v")
    foreign.failing, foreign.said = 200, said
    if said != b"[]":  # a list without checkpoints
        with pytest.raises(BackendError):
            await checkpointer.load("t")


class Behind:
    """A service of ours behind a proxy, which answers each request for a path itself."""

    def __init__(self, url: str, *answered: str) -> None:
        self.url = url
        self.answered = {*answered}
        self.asked: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.asked.append(path)
        if path in self.answered:
            return httpx.Response(200 if path == "/health" else 404)
        async with httpx.AsyncClient() as client:
            headers = {"content-type": request.headers.get("content-type", "")}
            return await client.request(
                request.method, self.url + path, content=request.content, headers=headers
            )


async def test_a_service_is_not_taken_for_another_after_a_404_of_a_proxy(service: Service) -> None:
    behind = Behind(service.url, "/v1")
    checkpointer = over(behind, state_type=dict)
    with pytest.raises(ConnectionFailedError, match="/v1 answered 404"):
        await checkpointer.save({"n": 1}, "t")
    behind.answered.clear()
    await checkpointer.save({"n": 1}, "t")
    assert checkpointer.capabilities.search


async def test_a_service_of_the_sdks_wire_is_asked_again_for_ours(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(remote, "monotonic", lambda: now)
    behind = Behind(service.url, "/v1", "/health")
    checkpointer = over(behind, state_type=dict)
    for _ in range(2):
        assert await checkpointer.load("t") is None
    assert (behind.asked.count("/v1"), checkpointer.capabilities.search) == (1, False)
    behind.answered.clear()
    now += remote.SDK_SECONDS + 1
    for _ in range(2):
        assert await checkpointer.load("t") is None
    assert (behind.asked.count("/v1"), checkpointer.capabilities.search) == (2, True)


async def test_an_integer_of_more_than_64_bits_is_refused(service: Service) -> None:
    url = service.url + "/threads/t/checkpoints"
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(headers=headers) as client:
        for number, status in ((2**64, 422), (-(2**63) - 1, 422), (2**64 - 1, 200)):
            body = f'{{"checkpoint_id": "v", "state": {{"n": [{number}]}}}}'
            assert (await client.post(url, content=body)).status_code == status
        assert f"{2**64 - 1}" in (await client.get(url + "/v")).text
