"""A double of OCI's Object Storage API over HTTP, written from its documentation. It is not OCI.

The pages that its behaviour was taken from:

- Conditions of a put and a delete (``if-match``, ``if-none-match: *``, 412): the reference of
  PutObject, https://www.rubydoc.info/gems/oci/2.3.5/OCI%2FObjectStorage%2FObjectStorageClient:put_object
- Lists (``prefix``, ``start``, ``end``, ``delimiter``, ``fields``, pages of 1,000): ListObjects,
  https://docs.oracle.com/en/engineered-systems/private-cloud-appliance/3.0-latest/ceapi/op-n-namespace_name-b-bucket_name-o-get.html
- Names of objects: https://docs.oracle.com/en-us/iaas/Content/Object/Tasks/managingobjects.htm
- Errors (401, 404, 409, 412, 429, 5xx): https://docs.oracle.com/en-us/iaas/Content/API/References/apierrors.htm
- The lifecycle policy is replaced whole, and a rule counts from the creation or the last update of
  an object: https://docs.oracle.com/en-us/iaas/Content/Object/Tasks/usinglifecyclepolicies.htm
- A read sees the last write: https://www.oracle.com/cloud/storage/object-storage/faq/
- Signatures: SIGNATURES below.

- A body that has not the MD5 of its ``Content-MD5`` is refused (400): the description of
  ``content_md5`` in the SDK's ``put_object``.
- Up to 1,000 objects are deleted by one request:
  https://docs.oracle.com/iaas/Content/Object/Tasks/batch-delete-objects.htm
- Its answer lists the deletions that failed (``failed``: name, status, message):
  https://docs.oracle.com/en-us/iaas/tools/python/latest/api/object_storage/models/oci.object_storage.models.BatchDeleteObjectsResult.html

Not verified on a page: 304 of a get with ``if-none-match``, ranges, ``start_after``, and the
conditions of a lifecycle policy. The SDK's own code names these parameters.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNATURES: Final = "https://docs.oracle.com/en-us/iaas/Content/API/Concepts/signingrequests.htm"
"""The page on signatures; a request whose date differs by five minutes is refused (401)."""

NAMESPACE: Final = "space"
PAGE: Final = 1000
MOST_RULES: Final = 1000
"""In one lifecycle policy: the page on those."""

SKEW: Final = timedelta(minutes=5)
HANGS_SECONDS: Final = 30

OBJECT = re.compile(r"/n/([^/]+)/b/([^/]+)/o/(.*)", re.DOTALL)
BUCKET = re.compile(r"/n/([^/]+)/b/([^/]+)")
LIST = re.compile(r"/n/([^/]+)/b/([^/]+)/o")
BUCKETS = re.compile(r"/n/([^/]+)/b/?")
POLICY = re.compile(r"/n/([^/]+)/b/([^/]+)/l")
BATCH = re.compile(r"/n/([^/]+)/b/([^/]+)/actions/batchDeleteObjects")


class Stored(NamedTuple):
    etag: str
    created: datetime
    modified: datetime
    content: bytes


@dataclass
class Bucket:
    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] | None = None
    """The sorted names; ``None`` after a change of them."""

    policy: tuple[str, dict[str, Any]] | None = None


class Answer(Exception):  # noqa: N818  (not only errors)
    def __init__(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


def refusal(status: int, code: str, message: str = "") -> Answer:
    body = json.dumps({"code": code, "message": message or code}).encode()
    return Answer(status, body, {"content-type": "application/json"})


class Fault(NamedTuple):
    """A fault of a request, before it is carried out, or after that if ``is_done``."""

    kind: str
    """``429``, ``503``, …, ``reset``, ``hang``; a status answers, the others break the line."""

    is_done: bool = False


class OciDouble:
    """The service: buckets of one namespace, requests counted, faults on demand."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.buckets: dict[str, Bucket] = {}
        self.requests: Counter[str] = Counter()
        self.log: list[tuple[str, str, int]] = []
        """Kind, object name and status of each request."""

        self.bytes_put = 0
        self.unchecked_puts = 0
        self.offset = timedelta(0)
        """Of the server's clock."""

        self.fault: Callable[[str, str], Fault | None] = lambda _kind, _name: None
        """Called with the kind and the object's name of each request that is signed."""

        self.refusal: Callable[[str], int | None] = lambda _name: None
        """Returns the status with which the deletion of an object is refused."""

        self.lock = threading.Lock()
        self._server = Server(("127.0.0.1", 0), Handler, self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,))
        self._thread.daemon = True
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def config(self) -> dict[str, Any]:
        """A configuration of the SDK, whose requests are accepted."""
        from cryptography.hazmat.primitives import serialization as kinds

        pem = self.key.private_bytes(
            kinds.Encoding.PEM, kinds.PrivateFormat.PKCS8, kinds.NoEncryption()
        )
        return {
            "user": "ocid1.user.oc1..double",
            "tenancy": "ocid1.tenancy.oc1..double",
            "fingerprint": ":".join(["aa"] * 16),
            "key_content": pem.decode(),
            "region": "us-ashburn-1",
        }

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def age(self, seconds: float, *, matching: str = "") -> None:
        """Make objects older."""
        older = timedelta(seconds=seconds)
        with self.lock:
            for bucket in self.buckets.values():
                for name, it in bucket.objects.items():
                    if matching in name:
                        times = {"created": it.created - older, "modified": it.modified - older}
                        bucket.objects[name] = it._replace(**times)

    def expire(self) -> int:
        """Do what the rules of the lifecycle policies say."""
        removed = 0
        with self.lock:
            for bucket in self.buckets.values():
                for rule in bucket.policy[1]["items"] if bucket.policy else ():
                    limit = self.now() - timedelta(days=rule["timeAmount"])
                    prefixes = (rule.get("objectNameFilter") or {}).get("inclusionPrefixes") or [""]
                    gone = [
                        name
                        for name, it in bucket.objects.items()
                        if name.startswith(tuple(prefixes)) and it.modified < limit
                    ]
                    for name in gone:
                        del bucket.objects[name]
                    bucket.names, removed = None, removed + len(gone)
        return removed

    # --- requests

    def answer(self, method: str, path: str, query: dict[str, str], request: Handler) -> Answer:
        """Do one request under the lock; every answer is raised."""
        if found := OBJECT.fullmatch(path):
            return self._object(method, self._bucket(found), unquote(found[3]), request)
        if found := BATCH.fullmatch(path):
            return self._batch(self._bucket(found), request)
        if found := POLICY.fullmatch(path):
            return self._policy(method, self._bucket(found), request)
        if found := LIST.fullmatch(path):
            return self._listed(self._bucket(found), query)
        if found := BUCKET.fullmatch(path):
            self._bucket(found)
            told = {"name": found[2], "namespace": NAMESPACE}
            return Answer(200, json.dumps(told).encode(), {"content-type": "application/json"})
        if BUCKETS.fullmatch(path) and method == "POST":
            name = json.loads(request.body)["name"]
            if name in self.buckets:
                raise refusal(409, "BucketAlreadyExists")
            self.buckets[name] = Bucket()
            told = {"name": name, "namespace": NAMESPACE}
            return Answer(200, json.dumps(told).encode(), {"content-type": "application/json"})
        raise refusal(404, "NotFound")

    def _bucket(self, found: re.Match[str]) -> Bucket:
        namespace, name = unquote(found[1]), unquote(found[2])
        if namespace != NAMESPACE or name not in self.buckets:
            raise refusal(404, "BucketNotFound", f"no bucket {name}")
        return self.buckets[name]

    def _object(self, method: str, bucket: Bucket, name: str, request: Handler) -> Answer:
        there = bucket.objects.get(name)
        match, none_match = request.headers["if-match"], request.headers["if-none-match"]
        if method == "PUT":
            if len(name.encode()) > 1024 or re.search("[\0\n\r]", name):
                raise refusal(400, "InvalidObjectName")
            if none_match == "*" and there:
                raise refusal(412, "IfNoneMatchFailed")
            if match and (there is None or there.etag != match):
                raise refusal(412, "IfMatchFailed")
            self._require_checksum(request)
            return self._put(bucket, name, request.body, there)
        if there is None:
            raise refusal(404, "ObjectNotFound", f"no object {name}")
        if match and there.etag != match:
            raise refusal(412, "IfMatchFailed")
        headers = {
            "etag": there.etag,
            "last-modified": format_datetime(there.modified, usegmt=True),
        }
        if method == "DELETE":
            if refused := self.refusal(name):
                raise refusal(refused, "Refused")
            del bucket.objects[name]
            bucket.names = None
            return Answer(204)
        if none_match in {there.etag, "*"}:
            return Answer(304, headers=headers)
        return self._content(there, request.headers["range"], headers)

    def _require_checksum(self, request: Handler) -> None:
        wanted = request.headers["content-md5"]
        found = hashlib.md5(request.body, usedforsecurity=False).digest()
        if wanted is not None and base64.b64decode(wanted) != found:
            raise refusal(400, "UnmatchedContentMD5")
        self.unchecked_puts += wanted is None

    def _put(self, bucket: Bucket, name: str, content: bytes, there: Stored | None) -> Answer:
        now = self.now()
        made = Stored(str(uuid4()), there.created if there else now, now, content)
        bucket.objects[name] = made
        if there is None:
            bucket.names = None
        self.bytes_put += len(content)
        return Answer(200, headers={"etag": made.etag})

    def _content(self, there: Stored, wanted: str | None, headers: dict[str, str]) -> Answer:
        size = len(there.content)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        if not found:
            return Answer(200, there.content, headers)
        first, last = int(found[1]), min(int(found[2] or size), size - 1)
        if first > last:
            raise refusal(416, "InvalidRange")
        headers["content-range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, there.content[first : last + 1], headers)

    def _listed(self, bucket: Bucket, query: dict[str, str]) -> Answer:
        if bucket.names is None:
            bucket.names = sorted(bucket.objects, key=str.encode)
        prefix, limit = query.get("prefix", ""), min(int(query.get("limit", PAGE)), PAGE)
        start, after = query.get("start", ""), query.get("startAfter")
        shown: list[str] = []
        prefixes: list[str] = []
        following: str | None = None
        for name in bucket.names:
            if not name.startswith(prefix) or name < start or (after and name <= after):
                continue
            rest, slash, _ = name[len(prefix) :].partition("/")
            folder = prefix + rest + slash if "delimiter" in query and slash else None
            if folder is not None and folder in prefixes:
                continue
            if len(shown) + len(prefixes) == limit:
                following = name
                break
            (prefixes if folder else shown).append(folder or name)
        fields = query.get("fields", "name").split(",")
        told = {
            "objects": [self._told(bucket.objects[it], it, fields) for it in shown],
            "prefixes": prefixes,
            "nextStartWith": following,
        }
        return Answer(200, json.dumps(told).encode(), {"content-type": "application/json"})

    def _told(self, it: Stored, name: str, fields: list[str]) -> dict[str, Any]:
        told = {
            "etag": it.etag,
            "size": len(it.content),
            "timeCreated": it.created.isoformat(),
            "timeModified": it.modified.isoformat(),
        }
        return {"name": name, **{key: told[key] for key in fields if key in told}}

    def _batch(self, bucket: Bucket, request: Handler) -> Answer:
        wanted = json.loads(request.body)["objects"]
        if len(wanted) > PAGE:
            raise refusal(400, "InvalidParameter")
        told: dict[str, list[Any]] = {"deleted": [], "failed": []}
        for it in wanted:
            if refused := self.refusal(it["objectName"]):
                why = {"statusCode": refused, "errorMessage": "Refused"}
                told["failed"].append({"objectName": it["objectName"], **why})
            else:
                bucket.objects.pop(it["objectName"], None)
        bucket.names = None
        return Answer(200, json.dumps(told).encode(), {"content-type": "application/json"})

    def _policy(self, method: str, bucket: Bucket, request: Handler) -> Answer:
        etag = bucket.policy[0] if bucket.policy else None
        match, none_match = request.headers["if-match"], request.headers["if-none-match"]
        if (match and match != etag) or (none_match == "*" and etag):
            raise refusal(412, "IfMatchFailed")
        if method == "PUT":
            told = json.loads(request.body)
            if len(told["items"]) > MOST_RULES:
                raise refusal(400, "InvalidParameter", f"more than {MOST_RULES} rules")
            bucket.policy = str(uuid4()), told
        if bucket.policy is None:
            raise refusal(404, "LifecyclePolicyNotFound")
        etag, told = bucket.policy
        body = json.dumps({"timeCreated": self.now().isoformat(), **told}).encode()
        return Answer(200, body, {"content-type": "application/json", "etag": etag})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, double: OciDouble) -> None:
        super().__init__(address, handler)
        self.double = double

    def handle_error(self, *_: Any) -> None:
        """A client that went away."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    body = b""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers["content-length"] or 0))
        double, parts = self.server.double, urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        found = OBJECT.fullmatch(parts.path)
        kind, name = kind_of(self.command, parts.path), unquote(found[3]) if found else ""
        try:
            self._require_signature()
        except Answer as answer:
            self._reply(answer)
            return
        fault = double.fault(kind, name)
        answer = None
        if fault is None or fault.is_done:
            with double.lock:
                double.requests[kind] += 1
                try:
                    answer = double.answer(self.command, parts.path, query, self)
                except Answer as exc:
                    answer = exc
                double.log.append((kind, name, answer.status))
        if fault is not None:
            answer = self._break(fault)
        if answer is not None:
            self._reply(answer)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _handle  # noqa: N815  (the server's names)

    def _break(self, fault: Fault) -> Answer | None:
        self.close_connection = True
        if fault.kind.isdigit():
            return refusal(int(fault.kind), {"429": "TooManyRequests"}.get(fault.kind, "Error"))
        if fault.kind == "hang":
            time.sleep(HANGS_SECONDS)
        linger = struct.pack("ii", 1, 0)  # a reset, not an end
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return None

    def _reply(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        self.send_header("date", format_datetime(self.server.double.now(), usegmt=True))
        self.send_header("opc-request-id", uuid4().hex)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in {204, 304}:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD" and answer.status not in {204, 304}:
            self.wfile.write(answer.body)

    def _require_signature(self) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        given = dict(re.findall(r'(\w+)="([^"]*)"', self.headers["authorization"] or ""))
        if given.get("algorithm") != "rsa-sha256" or "signature" not in given:
            raise refusal(401, "NotAuthenticated", "no signature")
        lines = [f"{it}: {self._signed(it)}" for it in given["headers"].split()]
        try:
            self.server.double.key.public_key().verify(
                base64.b64decode(given["signature"]),
                "\n".join(lines).encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except InvalidSignature as exc:
            raise refusal(401, "NotAuthenticated", "the signature is wrong") from exc
        signed_at = parsedate_to_datetime(self.headers["date"] or self.headers["x-date"])
        if abs(signed_at - self.server.double.now()) > SKEW:
            raise refusal(401, "NotAuthenticated", "the clock of the client is skewed")

    def _signed(self, name: str) -> str:
        if name == "(request-target)":
            return f"{self.command.lower()} {self.path}"
        return self.headers[name]


def kind_of(method: str, path: str) -> str:
    """The name of a request in counts."""
    if OBJECT.fullmatch(path):
        return method.lower()
    for kind, pattern in (("batch", BATCH), ("policy", POLICY), ("list", LIST)):
        if pattern.fullmatch(path):
            return kind
    return "bucket"


@contextmanager
def running() -> Iterator[OciDouble]:
    double = OciDouble()
    try:
        yield double
    finally:
        double.close()
