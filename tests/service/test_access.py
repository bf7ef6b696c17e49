"""Callers of a real service: hosts, tokens, rates, limits of requests, pages of operators."""

# ruff: noqa: ASYNC210  (the service runs in a thread of its own)

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from served import Served
from servers import DEADLINE_SECONDS, children, is_gone, wait_until
from services import Service

from locus_store import (
    BackendError,
    ConflictError,
    LocusStoreError,
    MemoryBackend,
    Quota,
    QuotaError,
    SQLiteBackend,
    UnsupportedError,
)
from locus_store.transfer.verifying import Checked, verify
from locus_store.values.encoding import pack_frame

if TESTS_RUN:
    import httpx

    from locus_store import HTTPBackend
    from locus_store.service import connections
    from locus_store.service.access import TokenFile
    from locus_store.service.connections import HEAD_BYTES, HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    """Start services, and stop them."""
    made: list[Service] = []

    def start(backend: Any = None, **options: Any) -> Service:
        made.append(Service(backend or MemoryBackend(), **options))
        return made[-1]

    yield start
    for it in made:
        it.stop()


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def exchanged(port: int, *request: bytes) -> bytes:
    """Send bytes, as far as the service takes them; return its answer until the connection ends."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with suppress(ConnectionError):
            for part in request:
                connection.sendall(part)
        with suppress(ConnectionError):
            while part := connection.recv(65_536):
                found += part
    return found


def watch_for_loss(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a service has lost a connection."""
    event = threading.Event()
    connection_lost = connections.LimitedConnection.connection_lost

    def note(connection: Any, exc: Exception | None) -> None:
        connection_lost(connection, exc)
        event.set()

    monkeypatch.setattr(connections.LimitedConnection, "connection_lost", note)
    return event


# --- hosts


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_without_tokens_a_page_that_points_its_name_here_is_refused(
    serve: Callable[..., Service], host: str
) -> None:
    service = serve(allowed_hosts=["localhost", "127.0.0.1", "[::1]"])
    async with httpx.AsyncClient(headers={"host": host}) as client:
        for path in ("/v1", "/health", "/metrics", "/threads/t/checkpoints"):
            answer = await client.get(service.url + path)
            assert answer.status_code == 421, path
    for name in ("localhost", f"LOCALHOST:{service.port}", "127.0.0.1:1", "[::1]:8321"):
        answer = httpx.get(service.url + "/v1", headers={"host": name})
        assert answer.is_success


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded"])
async def test_a_form_of_another_site_does_nothing(
    serve: Callable[..., Service], kind: str
) -> None:
    backend = MemoryBackend()
    await backend.save("t", {"n": 1})
    service = serve(backend)
    body = json.dumps({"thread_id": "t"})
    headers = {"content-type": kind, "origin": "http://evil.example"}
    answer = httpx.post(service.url + "/v1/remove_thread", content=body, headers=headers)
    assert answer.status_code == 422
    answer = httpx.options(service.url + "/v1/remove_thread", headers=headers)
    assert not any(it.startswith("access-control") for it in answer.headers)
    assert await backend.exists("t")


def test_serve_answers_for_the_hosts_that_it_was_given() -> None:
    served = Served("memory://", "--allow-host", "store.internal")
    try:
        for host, status in (("store.internal", 200), ("evil.example", 421)):
            answer = httpx.get(served.base_url + "/health", headers={"host": host})
            assert answer.status_code == status
    finally:
        served.stop()


# --- limits


def test_a_head_that_is_too_long_is_refused(serve: Callable[..., Service]) -> None:
    service = serve()
    long = b"GET /health HTTP/1.1\r\nhost: h\r\nx: " + b"a" * HEAD_BYTES + b"\r\n\r\n"
    many = b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS + 1) + b"\r\n"
    endless = b"GET /health HTTP/1.1\r\nx: "
    for request in ([long], [many], [endless, *[b"a" * 60_000] * 200]):
        assert exchanged(service.port, *request).startswith(b"HTTP/1.1 431 "), request[0][:30]
    assert httpx.get(service.url + "/health").is_success


def test_what_is_no_http_is_refused(serve: Callable[..., Service]) -> None:
    service = serve()
    for request in (b"\x16\x03\x01" + os.urandom(500), b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        assert exchanged(service.port, request).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(service.url + "/health").is_success


def test_a_body_that_comes_too_slowly_is_refused(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locus_store.service.exchange.LINGER_SECONDS", 0.1)
    service = serve(body_seconds=0.3)
    head = b"POST /v1/fetch HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    begun = monotonic()
    found = exchanged(service.port, head + b"content-length: 100\r\n\r\n{")
    assert found.startswith(b"HTTP/1.1 408 ")
    assert monotonic() - begun < 10


def test_a_body_that_is_too_long_is_answered_before_the_connection_ends(
    serve: Callable[..., Service],
) -> None:
    service = serve(max_body=1_000)
    head = b"POST /v1/fetch HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    declared = head + b"content-length: 20000000\r\n\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    found = exchanged(service.port, declared, *[b"a" * 1_000_000] * 20)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"SerializationError" in found
    chunk = b"f4240\r\n" + b"a" * 1_000_000 + b"\r\n"
    found = exchanged(service.port, chunked, *[chunk] * 20, b"0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 413 ")


async def test_a_frame_that_expands_beyond_its_limit_is_refused(
    serve: Callable[..., Service],
) -> None:
    from locus_store.wire import bodies
    from locus_store.wire.calls import BY_PATH

    inner = MemoryBackend(max_state_bytes=1_000_000)
    service = serve(inner)
    sent: list[bytes] = []

    async with HTTPBackend(service.url) as backend:
        home = await backend.service._connections.get()
        send = home._transport.send

        async def kept(method: str, path: str, body: bytes, headers: Any) -> Any:
            sent.append(body)
            return await send(method, path, body, headers)

        home._transport.send = kept  # type: ignore[method-assign]
        await backend.save("t", {"text": "x" * 100_000})
    value, payloads = bodies.decode_body(sent[-1], bodies.FRAMED)
    bomb = pack_frame(b"x" * 20_000_000)
    assert len(bomb) < 10_000
    change = value["save"]["change"]
    assert change["state"] is not None
    expanded = [bomb if n == change["state"] else it for n, it in enumerate(payloads._found)]
    parts = [bodies.encode_json(value), *(it for it in expanded if it is not None)]
    body = b"".join(len(it).to_bytes(4, "big") + it for it in parts)
    path = next(it for it in BY_PATH if it.endswith("/commit"))
    headers = {"content-type": bodies.FRAMED}
    answer = httpx.post(service.url + path, content=body, headers=headers, timeout=20)
    assert answer.status_code == 422
    assert "max_state_bytes=1000000" in answer.json()["message"]
    assert len(await inner.history("t")) == 1


@pytest.mark.parametrize("is_split", [False, True])
def test_an_upgrade_does_not_turn_a_body_into_requests(
    serve: Callable[..., Service], is_split: bool
) -> None:
    backend = MemoryBackend()
    asyncio.run(backend.save("t", {"n": 1}))
    service = serve(backend)
    inner = b'{"thread_id": "t"}'
    kind = b"content-type: application/json\r\n"
    hidden = b"POST /v1/remove_thread HTTP/1.1\r\nhost: h\r\n" + kind
    hidden += b"content-length: %d\r\n\r\n%b" % (len(inner), inner)
    head = b"POST /v1/history HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: x\r\n"
    head += kind + b"content-length: %d\r\n\r\n" % len(hidden)
    found = exchanged(service.port, *([head, hidden] if is_split else [head + hidden]))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1 ") == 1
    assert asyncio.run(backend.exists("t"))


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"transfer-encoding: gzip, chunked", b"501"), (b"content-encoding: gzip", b"415")],
)
def test_a_coded_body_is_refused(
    serve: Callable[..., Service], header: bytes, status: bytes
) -> None:
    head = b"POST /v1/history HTTP/1.1\r\nhost: h\r\nconnection: close\r\n" + header
    head += b"\r\ncontent-type: application/json\r\n"
    body = b"\r\n0\r\n\r\n" if b"chunked" in header else b"content-length: 2\r\n\r\n{}"
    found = exchanged(serve().port, head + body)
    assert found.startswith(b"HTTP/1.1 " + status)


def test_a_caller_that_reads_nothing_is_disconnected(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    asyncio.run(backend.save("t", {"text": os.urandom(10_000_000).hex()}))
    service = serve(backend)
    body = b'{"thread_id": "t"}'
    head = b"POST /v1/fetch HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    assert len(whole := exchanged(service.port, request)) > 1_000_000
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    lost = watch_for_loss(monkeypatch)
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as idle:
        idle.sendall(request)
        assert lost.wait(DEADLINE_SECONDS)
        found = 0
        with suppress(ConnectionError):
            while part := idle.recv(1_000_000):
                found += len(part)
    assert found < len(whole)


@pytest.mark.full
def test_options_of_serve_that_make_no_sense_are_refused_before_anything_is_served(
    tmp_path: Path,
) -> None:
    command = [str(Path(sys.executable).parent / "locus-store"), "serve", "--url"]
    for options in (
        ["memory://", "--workers", "2"],
        ["memory://", "--port", "99999"],
        ["memory://", "--token-file", str(tmp_path / "missing.json")],
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode, options
        assert "Serving" not in done.stdout + done.stderr


# --- tokens


def test_tokens_that_are_added_at_once_are_all_there(tokens: TokenFile, tmp_path: Path) -> None:
    def add(number: int) -> str:
        return TokenFile(tmp_path / "tokens.json").add(f"t{number}", None, ["read"])

    with ThreadPoolExecutor(8) as pool:
        secrets = [*pool.map(add, range(40))]
    assert len({*secrets}) == 40
    assert {it.name for it in tokens.read_tokens()} == {f"t{n}" for n in range(40)}
    assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert not any(it in (tmp_path / "tokens.json").read_text() for it in secrets)


async def test_tokens_change_without_a_restart(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    first = tokens.add("first", None, ["read"])
    service = serve(token_file=tmp_path / "tokens.json")

    def status(secret: str) -> int:
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.get(service.url + "/v1", headers=headers).status_code

    assert status(first) == 200
    second = tokens.add("second", None, ["read"])
    assert (status(first), status(second)) == (200, 200)
    tokens.revoke("first")
    assert (status(first), status(second)) == (401, 200)
    (tmp_path / "tokens.json").write_text("{")
    assert (status(second), status(second)) == (503, 503)
    assert httpx.get(service.url + "/ready").status_code == 503
    (tmp_path / "tokens.json").unlink()
    os.mkfifo(tmp_path / "tokens.json")
    assert status(second) == 503


@pytest.mark.full
def test_the_command_line_adds_lists_and_revokes_tokens(tmp_path: Path) -> None:
    def told(*arguments: str, fails: bool = False) -> str:
        command = [str(Path(sys.executable).parent / "locus-store"), "tokens", *arguments]
        environment = {**os.environ, "LOCUS_STORE_TOKEN_FILE": str(tmp_path / "t.json")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stdout + done.stderr

    secret = told("add", "worker", "--tenant", "acme", "--rights", "read, write").strip()
    assert re.fullmatch(r"locus_[\w-]{43}", secret)
    assert "already" in told("add", "worker", fails=True)
    assert "rights" in told("add", "other", "--rights", "all", fails=True)
    assert "rights" in told("add", "other", "--rights", "", fails=True)
    found = json.loads(told("list", "--json"))["tokens"]
    assert [(it["name"], it["tenant"], it["rights"]) for it in found] == [
        ("worker", "acme", ["read", "write"])
    ]
    assert "worker" in (shown := told("list"))
    assert secret not in shown
    told("revoke", "worker")
    assert "no token" in told("revoke", "worker", fails=True)


# --- rates and pages


async def test_a_caller_that_asks_too_often_is_told_to_wait(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    secrets = [tokens.add(it, None, ["read"]) for it in ("one", "other")]
    service = serve(token_file=tmp_path / "tokens.json", requests_per_second=0.01)
    one, other = ({"authorization": f"Bearer {it}"} for it in secrets)
    answers = [httpx.get(service.url + "/v1", headers=one) for _ in range(3)]
    assert [it.status_code for it in answers] == [200, 429, 429]
    assert 50 <= int(answers[-1].headers["retry-after"]) <= 101
    assert httpx.get(service.url + "/v1", headers=other).is_success
    service = serve(token_file=tmp_path / "tokens.json", requests_per_second=1)
    async with HTTPBackend(service.url, token=secrets[0], retry_seconds=10) as backend:
        for _ in range(2):
            assert await backend.load("t") is None


async def test_ready_asks_the_storage_and_health_does_not(
    serve: Callable[..., Service],
) -> None:
    class Broken(MemoryBackend):
        async def has_thread(self, thread_id: str) -> bool:
            raise BackendError("the disk of db.internal is full")

    service = serve(Broken())
    assert httpx.get(service.url + "/health").json() == {
        "status": "ok",
        "service": "locus-store",
    }
    answer = httpx.get(service.url + "/ready")
    assert answer.status_code == 503
    assert "db.internal" not in answer.text


async def test_metrics_count_requests_without_ids(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    admin = tokens.add("admin", None, ["read", "write", "admin"])
    reader = tokens.add("reader", None, ["read"])
    service = serve(token_file=tmp_path / "tokens.json")
    async with HTTPBackend(service.url, token=admin) as backend:
        for n in range(3):
            await backend.save("private-id", {"n": n})
    url = service.url + "/metrics"
    assert httpx.get(url, headers={"authorization": f"Bearer {reader}"}).status_code == 403
    text = httpx.get(url, headers={"authorization": f"Bearer {admin}"}).text
    assert 'locus_store_requests_total{path="/v1/commit",status="200"} 3.0' in text
    assert 'locus_store_request_seconds_count{path="/v1/commit"} 3.0' in text
    assert "private-id" not in text


# --- workers


def metrics(served: Served) -> float:
    """Return the number of answers of ``/health`` over all workers."""
    text = httpx.get(served.base_url + "/metrics").text
    return sum(float(it) for it in re.findall(r'total\{path="/health",status="200"\} (.+)', text))


@pytest.mark.full
def test_workers_count_together_and_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    served = Served(f"sqlite:///{tmp_path / 'db'}", "--workers", "2")
    try:
        for _ in range(20):
            assert httpx.get(served.base_url + "/health").is_success
        assert metrics(served) == 20
        before = workers(served)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len({*workers(served)} - {*before}) == 1, "another worker")
        for _ in range(10):
            assert httpx.get(served.base_url + "/health").is_success
        assert metrics(served) == 30
    finally:
        assert served.stop() in {0, -signal.SIGTERM}


@pytest.mark.full
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    served = Served(f"sqlite:///{tmp_path / 'db'}", "--workers", "2")
    found = workers(served)
    try:
        served.process.kill()
        served.process.wait()
        wait_until(lambda: not any(not is_gone(it) for it in found), "the end")
    finally:
        for it in found:
            with suppress(ProcessLookupError):
                os.kill(it, signal.SIGKILL)


@pytest.mark.full
def test_an_interrupt_of_all_processes_starts_no_worker_again(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "locus-store"), "serve", "--port", "0"]
    command += ["--workers", "2", "--url", f"sqlite:///{tmp_path / 'db'}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    announced = process.stderr.readline()
    port = re.search(r"http://127\.0\.0\.1:(\d+)$", announced.strip())
    assert port is not None, announced
    assert httpx.get(f"http://127.0.0.1:{port[1]}/ready", timeout=30).is_success
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=40)
    assert "another one starts" not in errors


def workers(served: Served) -> list[int]:
    """Return the processes of the workers."""
    found = (it for it in children(served.process.pid))
    return [it for it in found if b"spawn_main" in Path(f"/proc/{it}/cmdline").read_bytes()]


async def test_a_save_whose_caller_goes_away_completes(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(MemoryBackend):
        async def commit(self, *args: Any, **options: Any) -> Any:
            began.set()
            try:
                assert await asyncio.to_thread(lost.wait, DEADLINE_SECONDS)
                return await super().commit(*args, **options)
            finally:
                ended.set()

    began, ended = threading.Event(), threading.Event()
    lost = watch_for_loss(monkeypatch)
    inner = Slow()
    async with HTTPBackend(serve(inner).url, retry_seconds=0) as backend:
        save = asyncio.create_task(backend.save("t", {"n": 1}, checkpoint_id="v"))
        assert await asyncio.to_thread(began.wait, DEADLINE_SECONDS)
        home = await backend.service._connections.get()
        await home._transport.close()
        with pytest.raises(LocusStoreError):
            await save
    assert await asyncio.to_thread(ended.wait, DEADLINE_SECONDS)
    assert await inner.exists("t", "v")


async def test_verify_without_the_right_is_refused_and_reports_no_damage(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    reader = tokens.add("reader", None, ["read", "write"])
    service = serve(token_file=tmp_path / "tokens.json")
    async with HTTPBackend(service.url, token=reader) as backend:
        await backend.save("t", {"n": 1})
        with pytest.raises(UnsupportedError, match=r"right 'admin'.*name threads to verify them"):
            [it async for it in verify(backend)]
        assert [it async for it in verify(backend, ["t"])] == [Checked("t", 1)]


# --- repeated headers


@pytest.mark.parametrize("name", ["Authorization", "Host", "Content-Type"])
async def test_a_header_that_decides_is_sent_once(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path, name: str
) -> None:
    """A proxy may have judged a request by the other one."""
    secret = tokens.add("ops", None, ["read"])
    service = serve(token_file=tmp_path / "tokens.json")
    values = {
        "Authorization": f"Bearer {secret}",
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
    }
    head = "".join(f"{it}: {value}\r\n" for it, value in [*values.items(), (name, "other")])
    body = b'{"limit": 1}'
    rest = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    request = f"POST /v1/scan HTTP/1.1\r\n{head}{rest}".encode() + body
    found = await asyncio.to_thread(exchanged, service.port, request)
    assert found.startswith(b"HTTP/1.1 400")
    assert secret.encode() not in found


async def test_the_record_of_calls_names_the_token_and_what_it_was_refused(
    serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    secrets = {it: tokens.add(it, None, [it]) for it in ("read", "write")}
    storage = SQLiteBackend(tmp_path / "audit.db", audit="service")
    service = serve(storage, token_file=tmp_path / "tokens.json")
    async with (
        HTTPBackend(service.url, token=secrets["read"]) as reader,
        HTTPBackend(service.url, token=secrets["write"]) as writer,
    ):
        with pytest.raises(UnsupportedError):
            await reader.remove_thread("t")
        await writer.save("t", {"n": 1})
        with pytest.raises(ConflictError):
            await writer.copy_thread("t", "t")
    answer = httpx.delete(
        f"{service.url}/threads/t/checkpoints",
        headers={"authorization": f"Bearer {secrets['read']}"},
    )
    assert answer.status_code == 403
    async with SQLiteBackend(tmp_path / "audit.db") as backend:
        found = await backend.list_entries(0, 100, 100)
    assert [(it.who, it.method, it.result) for it in found] == [
        ("read", "remove_thread", "403"),
        ("write", "commit", "done"),
        ("write", "copy_thread", "ConflictError"),
        ("read", "DELETE /threads", "403"),
    ]


@pytest.mark.parametrize(
    ("quota", "status"),
    [(Quota(threads=1), 403), (Quota(bytes=200), 403), (Quota(saves_per_minute=1), 429)],
)
async def test_a_quota_of_the_tenant_refuses_a_client(
    quota: Quota, status: int, serve: Callable[..., Service], tokens: TokenFile, tmp_path: Path
) -> None:
    storage = SQLiteBackend(tmp_path / "quota.db")
    async with SQLiteBackend(tmp_path / "quota.db", tenant="acme") as backend:
        await backend.set_quota(quota)
    secrets = [tokens.add(it, it, ["read", "write", "admin"]) for it in ("acme", "globex")]
    service = serve(storage, token_file=tmp_path / "tokens.json")
    async with (
        HTTPBackend(service.url, token=secrets[0], retry_seconds=0) as limited,
        HTTPBackend(service.url, token=secrets[1]) as free,
    ):
        await limited.save("a", {})
        with pytest.raises(QuotaError) as caught:
            await limited.save("b", {"n": "x" * 500})
        assert (caught.value.tenant, [caught.value.quota]) == ("acme", [*quota.to_limits()])
        assert (caught.value.retry_after_seconds is None) == (status == 403)
        assert await limited.scan() == ["a"]
        await free.save("b", {"n": "x" * 500})
        await free.save("c", {})
    text = httpx.get(service.url + "/metrics", headers={"authorization": f"Bearer {secrets[1]}"})
    assert f'requests_total{{path="/v1/commit",status="{status}"}} 1.0' in text.text
