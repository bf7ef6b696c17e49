"""The file of the tokens: names, tenants, rights, and hashes of the secrets."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from filelock import FileLock

from locus_store.errors import BackendError, ConflictError, InvalidArgumentError, NotFoundError
from locus_store.types.arguments import check_tenant, check_text
from locus_store.wire.calls import Right

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1
SECRET_BYTES: Final = 32
_HASH: Final = re.compile("[0-9a-f]{64}")

PREFIX: Final = "locus_"
"""Begins each secret, so that scanners for secrets can find one that was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    name: str
    tenant: str | None
    rights: list[str]
    sha256: str
    created_at: str


def hashed(secret: str) -> str:
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
        self._tokens: list[Token] = []

    def tokens(self) -> list[Token]:
        """Return the tokens that are valid now.

        Raises:
            BackendError: The file cannot be read; no token is valid then.
        """
        try:
            found = _file(self._path)
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
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        made = Token(
            name=name,
            tenant=tenant,
            rights=[it for it in known if it in rights],
            sha256=hashed(secret),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._lock:
            tokens = self.tokens() if self._path.exists() else []
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
            tokens = self.tokens()
            left = [it for it in tokens if it.name != name]
            if len(left) == len(tokens):
                raise NotFoundError(f"there is no token {name!r}")
            self._write(left)

    def _write(self, tokens: Sequence[Token]) -> None:
        """Replace the file whole, readable for its owner only."""
        made = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        body = {"format": FORMAT, "tokens": [asdict(it) for it in tokens]}
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._path)


def _file(path: Path) -> os.stat_result:
    """Return the facts of a file.

    Raises:
        ValueError: It is a folder, or a pipe, whose read would not end.
    """
    found = path.stat()
    if not S_ISREG(found.st_mode):
        raise ValueError("not a file")
    return found


def _read(content: bytes) -> list[Token]:
    found: Any = orjson.loads(content)
    if found["format"] != FORMAT:
        raise ValueError("unknown format")
    tokens = [Token(**it) for it in found["tokens"]]
    if not all(_is_valid(it) for it in tokens):
        raise ValueError("a token has a field that is not valid")
    return tokens


def _is_valid(token: Token) -> bool:
    rights = token.rights
    return (
        isinstance(token.name, str)
        and (token.tenant is None or isinstance(token.tenant, str))
        and isinstance(rights, list)
        and set(rights) <= set(get_args(Right))
        and isinstance(token.sha256, str)
        and _HASH.fullmatch(token.sha256) is not None
    )
