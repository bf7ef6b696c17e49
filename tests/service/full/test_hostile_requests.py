"""Generated requests with hostile ids, bodies and headers, as bytes, to a service of its own."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from every_call import Asked, Sent, any_request, recorded
from served import Served
from tiers import LONG

from locus_store import HTTPBackend, InvalidArgumentError
from locus_store.service.access import TokenFile
from locus_store.testing.kit import HOSTILE_IDS
from locus_store.wire import bodies
from locus_store.wire.calls import BY_PATH, CALLS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

REQUESTS = 100_000 if LONG else 1_500
MOST_GROWN_BYTES = 100_000_000
"""Of the service's memory, from a tenth of the requests on."""

SECRET_TEXT = "only-of-umbrella"  # noqa: S105
STATUSES = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 428, 431, 501}

VALUES: list[Any] = [
    None, True, 0, -1, 2**63, 2**70, 1.5, 1e308, "", "a\0b", "x" * 300, "é" * 200, "..", "/", [],
    [[]], {}, {"": None}, {"$gt": 1}, {"$or": []}, "AAAA", "🎉", "\ud800", "umbrella",
    float("nan"), "AAAAAAAAAAAAAAAAAAAAAA==", "AgABAQ==", [0] * 500, "x" * 20_000,
]  # fmt: skip
HEADERS = [
    b"content-length: 5", b"content-length: -1", b"content-length: 99999999999999999999",
    b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"content-type: text/plain",
    b"content-type: application/json; charset=\xff", b"content-type: application/vnd.locus-store",
    b"accept: application/vnd.locus-store", b"authorization: Bearer", b"authorization: Basic eA==",
    b"authorization: Bearer locus_" + b"x" * 5_000, b"expect: 100-continue", b"range: bytes=0-1",
    b"host: umbrella", b"x-tenant: umbrella", b"connection: upgrade\r\nupgrade: websocket",
    b"x: " + b"a" * 60_000, b": empty", b"no colon", b"x:\x00\x01", b"content-encoding: gzip",
    b"x-http-method-override: DELETE", b"cookie: " + b"a=b;" * 900, b" folded: x",
]  # fmt: skip
NAMES = sorted(
    {name for call in CALLS for name in call.parameters}
    | {"store", "line", "sequence", "digest", "frames", "change", "lines", "records", "payload"}
    | {"made_from", "head", "puts", "cut", "kind", "json", "vectors", "wanted", "checkpoint_id"}
)
CONTINUE = b"HTTP/1.1 100 "
METHODS = [b"GET", b"POST", b"DELETE", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"get", b"\xff"]


class Generator:
    """Makes requests at random.

    Args:
        secret: The token of the one who sends them.
        asked: Valid calls to start from.
    """

    def __init__(self, secret: str, asked: list[Asked], seed: int) -> None:
        self.dice = random.Random(seed)
        self._authorization = b"authorization: Bearer " + secret.encode()
        self._asked = asked

    def request(self) -> bytes:
        """Return a request, nearly always a whole one."""
        dice = self.dice
        sent = any_request(self._asked, "acme", dice)
        kind = b"application/json"
        body = (sent.body or "").encode()
        if dice.random() < 0.6:
            body, kind = self._body(sent)
        path = self._path(sent).encode("latin-1", "replace")
        method = sent.method.encode() if dice.random() < 0.9 else dice.choice(METHODS)
        headers = [b"host: h", self._authorization, b"content-type: " + kind]
        if body or dice.random() < 0.9:
            headers.append(b"content-length: %d" % len(body))
        if dice.random() < 0.2:
            headers.insert(dice.randrange(4), dice.choice(HEADERS))
        made = b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), *headers, b"", body])
        return made if dice.random() < 0.97 else self._damaged(made)

    def _damaged(self, made: bytes) -> bytes:
        at = self.dice.randrange(len(made))
        return made[:at] + self.dice.randbytes(self.dice.randrange(4)) + made[at + 1 :]

    def _path(self, sent: Sent) -> str:
        dice = self.dice
        if dice.random() < 0.8:
            return sent.path
        if dice.random() < 0.3:
            return sent.path + dice.choice(["/", "/..", "?limit=1", "%00", "//", "?x=" + "y" * 900])
        thread, checkpoint = (self._id() for _ in range(2))
        path = f"/threads/{thread}/checkpoints"
        return dice.choice([path, f"{path}/{checkpoint}", f"{path}?limit={thread}", f"/{thread}"])

    def _id(self) -> str:
        found = self.dice.choice([*HOSTILE_IDS, "umbrella", "../umbrella", "a\0b", "x" * 400])
        kept = self.dice.choice(["", "/", "%", "/?#"])
        return quote(found, safe=kept).replace(" ", "+")

    def _body(self, sent: Sent) -> tuple[bytes, bytes]:
        call = BY_PATH.get(sent.path)
        if call is not None and self.dice.random() < 0.4:
            names = [it for it in call.parameters if self.dice.random() < 0.9]
            arguments = {it: self._value() for it in names}
        else:
            arguments = json.loads(sent.body or "{}")
            self._change(arguments)
        if self.dice.random() < 0.3:
            packed = {it: self._packed(value) for it, value in arguments.items()}
            with suppress(InvalidArgumentError):  # no JSON of ours, but perhaps of another client
                body, kind = bodies.encode_body(packed)
                return body, kind.encode()
        return json.dumps(arguments).encode(), b"application/json"

    def _value(self, depth: int = 0) -> Any:
        """Return any value, which may be deep."""
        dice = self.dice
        if depth < 3 and dice.random() < 0.3:
            return {dice.choice(NAMES): self._value(depth + 1) for _ in range(dice.randrange(5))}
        if depth < 3 and dice.random() < 0.2:
            return [self._value(depth + 1) for _ in range(dice.randrange(3))]
        return dice.choice(VALUES)

    def _change(self, value: dict[str, Any] | list[Any]) -> None:
        """Replace a value, however deep."""
        keys = [*(value if isinstance(value, dict) else range(len(value)))]
        if not keys:
            return
        key = self.dice.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and self.dice.random() < 0.8:
            self._change(inner)
        elif isinstance(value, dict) and self.dice.random() < 0.1:
            del value[key]
        else:
            value[key] = self.dice.choice([*VALUES, *HOSTILE_IDS])

    def _packed(self, value: Any) -> Any:
        return self.dice.randbytes(40) if self.dice.random() < 0.2 else value


class Wire:
    """A connection that is opened again whenever the service closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: socket.socket | None = None
        self.found: Counter[int] = Counter()
        self.seen = b""

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def send(self, request: bytes) -> None:
        """Send a request; take its answer, or none if the request is not whole."""
        if self._open is None:
            self._open = socket.create_connection(("127.0.0.1", self._port), timeout=0.25)
        try:
            self._open.sendall(request)
            is_kept = self._take(is_head_only=request.startswith(b"HEAD "))
        except (TimeoutError, ConnectionError):
            self.found[0] += 1
            is_kept = False
        if not is_kept:
            self.close()

    def _take(self, *, is_head_only: bool) -> bool:
        """Read an answer; return whether another one may follow on the connection."""
        assert self._open is not None
        head, body = CONTINUE, b""
        while head.startswith(CONTINUE):
            head, body = self._head(body)
            if not head:
                self.found[0] += 1
                return False
        status, size = int(head[9:12]), length(head)
        while len(body) < size and not is_head_only:
            body += self._open.recv(1_048_576)
        self.found[status] += 1
        assert status in STATUSES, (head, body[:500])
        assert SECRET_TEXT.encode() not in body, body[:500]
        assert b"Traceback" not in body
        return b"\r\nconnection: close" not in head.lower() and len(body) == size

    def _head(self, found: bytes) -> tuple[bytes, bytes]:
        """Return a head, and what was read behind it; nothing if the connection ended."""
        assert self._open is not None
        while b"\r\n\r\n" not in found:
            part = self._open.recv(65_536)
            if not part:
                return b"", b""
            found += part
        head, _, rest = found.partition(b"\r\n\r\n")
        return head, rest


def length(head: bytes) -> int:
    """Return the length of the body that a head tells."""
    lines = head.lower().split(b"\r\n")
    return next((int(it[15:]) for it in lines if it.startswith(b"content-length:")), 0)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def secrets(tokens: Path) -> dict[str, str]:
    rights = ["read", "write", "admin"]
    return {it: TokenFile(tokens).add(it, it, rights) for it in ("acme", "umbrella")}


@pytest.fixture
def served(secrets: dict[str, str], tokens: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(
        f"sqlite:///{tmp_path / 'db'}", "--token-file", str(tokens), "--max-body", "100kB"
    )
    yield made
    made.stop()


def resident_bytes(served: Served) -> int:
    return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * 4096


async def test_hostile_requests_neither_see_nor_change_nor_end_anything(
    served: Served, secrets: dict[str, str]
) -> None:
    umbrella = HTTPBackend(served.base_url, token=secrets["umbrella"])
    said = {"said": SECRET_TEXT, "metadata": {"tag": SECRET_TEXT}}
    for it in ("T0", "T1", "umbrella"):
        await umbrella.save(it, said, checkpoint_id="C0", metadata={"tag": SECRET_TEXT})
    generator = Generator(secrets["acme"], await recorded("acme"), 11)
    with closing(Wire(served.port)) as wire:
        for n in range(REQUESTS):
            if n == REQUESTS // 10:
                before = resident_bytes(served)
            wire.send(generator.request())
    grown = resident_bytes(served) - before
    print(sorted(wire.found.items()), f"{before:,} bytes, and {grown:,} more")
    assert grown < MOST_GROWN_BYTES
    assert wire.found[200] > REQUESTS // 10
    assert served.process.poll() is None
    assert sorted(await umbrella.list_threads()) == ["T0", "T1", "umbrella"]
    for it in ("T0", "T1", "umbrella"):
        assert await umbrella.load(it) == said
        assert len(await umbrella.history(it)) == 1
    await umbrella.close()
