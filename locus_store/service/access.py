"""Callers: tokens, their rights and tenants, and their rate."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from stat import S_ISREG
from time import monotonic
from typing import Annotated, Any, Final, get_args

import orjson
from filelock import FileLock
from pydantic import ConfigDict, Field, TypeAdapter

from locus_store.errors import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from locus_store.service.exchange import FORBIDDEN, RefusalError
from locus_store.types.acting import acting_as
from locus_store.types.arguments import check_number, check_tenant, check_text
from locus_store.wire.calls import Right

_PORT: Final = re.compile(r":\d*$")

log: Final = logging.getLogger("locus_store.service")

EVERYTHING: Final = frozenset[str](get_args(Right))

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names in ``Host`` that mean this machine."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who asks."""

    name: str
    tenant: str | None
    rights: frozenset[str]

    def act(self) -> AbstractContextManager[None]:
        """Return a block whose calls a storage records by this caller's name."""
        return acting_as(self.name) if self.name else nullcontext()

    def require(self, right: Right) -> None:
        """Refuse a caller without a right."""
        if right not in self.rights:
            message = f"this caller does not have the right {right!r}; nothing was done"
            raise RefusalError(FORBIDDEN, UnsupportedError(message))


class Door:
    """Finds out who asks.

    Args:
        token_file: The tokens; ``None``: anyone may ask.
        read_only: No caller may write.
        requests_per_second: Of each caller; ``None``: any number.
        allowed_hosts: The names in ``Host`` that are answered; ``None``: any.
    """

    def __init__(
        self,
        token_file: str | Path | None,
        *,
        read_only: bool,
        requests_per_second: float | None,
        allowed_hosts: Collection[str] | None = None,
    ) -> None:
        check_number("requests_per_second", requests_per_second, optional=True)
        self._file = None if token_file is None else TokenFile(token_file)
        if self._file is not None:
            self._file.read_tokens()
        self._granted: frozenset[str] = frozenset({"read", "audit"}) if read_only else EVERYTHING
        self._hosts = None if allowed_hosts is None else frozenset(allowed_hosts)
        self._rate = requests_per_second
        self._rates: dict[str, Rate] = {}
        self._failure = ""

    def require_host(self, host: str) -> None:
        """Refuse a request that names another host.

        Without tokens, a web page could reach a service on this machine by a name of its own that
        it lets point here (DNS rebinding). Its requests name that host.

        Raises:
            RefusalError: The host is not allowed.
        """
        if self._hosts is not None and _PORT.sub("", host).lower() not in self._hosts:
            error = ConnectionFailedError(
                f"this service does not answer for the host {host[:80]!r}: start it with "
                "--allow-host, or with tokens"
            )
            raise RefusalError(421, error)

    def identify(self, authorization: str) -> Caller:
        """Return who sent a header ``Authorization``.

        Raises:
            RefusalError: The token is not valid, or this caller asks too often.
        """
        caller = self._find_caller(authorization)
        self.require_rate(caller)
        return caller

    def require_rate(self, caller: Caller) -> None:
        """Count a request of a caller; refuse one who asks too often."""
        if self._rate is not None:
            self._rates.setdefault(caller.name, Rate(self._rate)).require_room()

    def _find_caller(self, authorization: str) -> Caller:
        if self._file is None:
            return Caller("", None, self._granted)
        scheme, _, secret = authorization.partition(" ")
        found = self.find_token(secret.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            error = ConnectionFailedError("this service needs a valid token")
            raise RefusalError(401, error, www_authenticate="Bearer")
        return self._make_caller(found)

    def find_holder(self, sha256: str) -> Caller | None:
        """Return the caller whose token has a hash; ``None`` if there is none any more."""
        found = next((it for it in self.read_tokens() if it.sha256 == sha256), None)
        return None if found is None else self._make_caller(found)

    def _make_caller(self, token: _Token) -> Caller:
        return Caller(token.name, token.tenant, self._granted & set(token.rights))

    def read_tokens(self) -> list[_Token]:
        """Return the tokens that are valid now; none if the service has no token file.

        Raises:
            RefusalError: The file cannot be read. The log says why, once.
        """
        try:
            found = [] if self._file is None else self._file.read_tokens()
        except BackendError as exc:
            if self._failure != (failure := f"{exc}: {exc.__cause__}"):
                log.warning("%s", failure)
            self._failure = failure
            message = "the service cannot read its tokens; its log says why"
            raise RefusalError(503, ConnectionFailedError(message)) from exc
        self._failure = ""
        return found

    def find_token(self, secret: str) -> _Token | None:
        """Return the token of a secret, in a time that does not depend on the secret."""
        wanted, found = _hash(secret), None
        for token in self.read_tokens():
            if compare_digest(token.sha256, wanted):
                found = token
        return found


class Rate:
    """A bucket of requests that fills up again.

    Args:
        per_second: Requests per second; so many, but at least 1, may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(per_second, 1.0)
        self._left = self._most
        self._at = monotonic()

    def require_room(self) -> None:
        """Take one.

        Raises:
            RefusalError: There is none; says when there will be.
        """
        now = monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            seconds = (1 - self._left) / self._per_second
            error = ConnectionFailedError("this caller asks too often")
            raise RefusalError(429, error, retry_after=f"{max(1, round(seconds + 0.5))}")
        self._left -= 1


FORMAT: Final = 1
_SECRET_BYTES: Final = 32

PREFIX: Final = "locus_"
"""Begins each secret, so that scanners for secrets can find one that was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """A token without its secret."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    tenant: str | None
    rights: list[Right]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created_at: str


def _hash(secret: str) -> str:
    """Return the hash of a secret, which is long and random, so that a fast hash does."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class TokenFile:
    """Tokens in a file, which is read again whenever it was changed.

    Args:
        path: A JSON file. Changes lock a file with the suffix ``.lock``.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = FileLock(f"{self._path}.lock")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: list[_Token] = []

    def read_tokens(self) -> list[_Token]:
        """Return the tokens that are valid now.

        Raises:
            BackendError: The file cannot be read; no token is valid then.
        """
        try:
            found = _inspect_file(self._path)
            seen = found.st_mtime_ns, found.st_size, found.st_ino
            if seen != self._seen:
                self._tokens = _read(self._path.read_bytes())
                self._seen = seen
        except (OSError, ValueError, TypeError, KeyError) as exc:
            self._seen = None
            raise BackendError(
                f"the token file {self._path} cannot be read; `locus-store tokens add` makes one"
            ) from exc
        return self._tokens

    def add(self, name: str, tenant: str | None, rights: Sequence[str]) -> str:
        """Add a token; return its secret, which is stored nowhere.

        Raises:
            ConflictError: There is a token of this name.
            InvalidArgumentError: A name or right is not valid.
        """
        check_text("name", name)
        if tenant is not None:
            check_tenant(tenant)
        known = get_args(Right)
        if not rights or not set(rights) <= set(known):
            raise InvalidArgumentError(f"the rights of a token are some of {', '.join(known)}")
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        made = _Token(
            name=name,
            tenant=tenant,
            rights=[it for it in known if it in rights],
            sha256=_hash(secret),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._lock:
            tokens = self.read_tokens() if self._path.exists() else []
            if name in {it.name for it in tokens}:
                raise ConflictError(f"there is a token {name!r} already; revoke it first")
            self._write([*tokens, made])
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token; a running service refuses it from its next request on.

        Raises:
            NotFoundError: There is no token of this name.
        """
        with self._lock:
            tokens = self.read_tokens()
            left = [it for it in tokens if it.name != name]
            if len(left) == len(tokens):
                raise NotFoundError(f"there is no token {name!r}")
            self._write(left)

    def _write(self, tokens: Sequence[_Token]) -> None:
        """Replace the file whole, readable for its owner only."""
        made = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        body = {"format": FORMAT, "tokens": [asdict(it) for it in tokens]}
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._path)


def _inspect_file(path: Path) -> os.stat_result:
    """Return the facts of a file; refuse a folder, or a pipe, whose read would not end."""
    found = path.stat()
    if not S_ISREG(found.st_mode):
        raise ValueError("not a file")
    return found


_TOKENS: Final = TypeAdapter(list[_Token], config={"hide_input_in_errors": True})


def _read(content: bytes) -> list[_Token]:
    found: Any = orjson.loads(content)
    if found["format"] != FORMAT:
        raise ValueError("unknown format")
    return _TOKENS.validate_python(found["tokens"])
