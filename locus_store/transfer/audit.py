"""Signed exports of an audit trail, and anchors: roots that are kept elsewhere."""

from __future__ import annotations

import json
import subprocess
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from locus_store.errors import (
    BackendError,
    IntegrityError,
    InvalidArgumentError,
    MissingExtraError,
    NotFoundError,
)
from locus_store.open import open_store
from locus_store.versions.audit import Audited, AuditEntry, AuditLog, Seal, read_entries

FORMAT: Final = "locus-store audit 1"
ANCHORS: Final = "audit-anchors"
"""The first part of the namespace of anchors that a store keeps."""

_PAGE: Final = 1000
_DIGITS: Final = 19


async def export(log: AuditLog, about: dict[str, str], key: Path, file: BinaryIO) -> int:
    """Write the entries and seals of a tenant as JSON Lines with a signature.

    Args:
        log: Where they are.
        about: Fields of the first line.
        key: The file of an Ed25519 private key in PEM.
        file: Is written to.

    Returns:
        The number of entries.

    Raises:
        InvalidArgumentError: The key is not valid.
        MissingExtraError: cryptography is not installed.
    """
    signer = _load_key(key, "load_pem_private_key", password=None)
    digest, count = sha256(), 0

    def put(document: dict[str, Any]) -> None:
        line = json.dumps(document, separators=(",", ":"), default=_encode).encode() + b"\n"
        digest.update(line)
        file.write(line)

    put({"format": FORMAT, **about})
    last = 0
    while seals := await log.list_seals(last, 1):
        last = seals[0].number
        put({"seal": asdict(seals[0])})
    async for entry in read_entries(log):  # behind the seals, so that none of theirs is missing
        put({"entry": entry._asdict()})
        count += 1
    signature = signer.sign(digest.digest()).hex()
    file.write(json.dumps({"ed25519": signature}).encode() + b"\n")
    return count


def _encode(value: Any) -> str:
    return str(value.hex() if isinstance(value, bytes) else value.isoformat())


class FileLog:
    """The entries and seals in an export.

    Args:
        path: The file.
        public_key: The file of an Ed25519 public key in PEM.

    Raises:
        IntegrityError: The file is damaged, or was not signed with this key.
        InvalidArgumentError: The key is not valid.
        MissingExtraError: cryptography is not installed.
        NotFoundError: There is no such file.
    """

    def __init__(self, path: Path, public_key: Path) -> None:
        key = _load_key(public_key, "load_pem_public_key")
        self._seals: list[Seal] = []
        self._entries: list[AuditEntry] = []
        *lines, last = _read(path).splitlines(keepends=True) or [b""]
        try:
            key.verify(bytes.fromhex(json.loads(last)["ed25519"]), sha256(b"".join(lines)).digest())
            self.about = json.loads(lines[0])
            for line in lines[1:]:
                self._add(json.loads(line))
        except Exception as exc:
            raise IntegrityError(
                f"{path} is not an export that was signed with the key of {public_key}, or it was"
                " changed since"
            ) from exc
        self._numbers = [it.entry for it in self._entries]

    def _add(self, document: dict[str, Any]) -> None:
        [(kind, fields)] = document.items()
        for name, value in fields.items():
            if name.endswith("_at"):
                fields[name] = datetime.fromisoformat(value)
            elif name in {"leaves", "root"}:
                fields[name] = bytes.fromhex(value)
        if kind == "seal":
            self._seals.append(Seal(**fields))
        else:
            self._entries.append(AuditEntry(**fields))

    async def read_audited(self) -> Audited:
        return Audited(self.about["store"], self.about["tenant"])

    async def read_last_seal(self) -> Seal | None:
        return self._seals[-1] if self._seals else None

    async def list_seals(self, after: int, limit: int) -> list[Seal]:
        first = bisect_right(self._seals, after, key=lambda it: it.number)
        return self._seals[first : first + limit]

    async def list_entries(self, after: int, upto: int, limit: int) -> list[AuditEntry]:
        first, end = bisect_right(self._numbers, after), bisect_right(self._numbers, upto)
        return self._entries[first : min(end, first + limit)]


def _load_key(path: Path, load: str, **options: Any) -> Any:
    try:
        module = import_module("cryptography.hazmat.primitives.serialization")
        ed25519 = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as exc:
        raise MissingExtraError(
            "exports are signed with cryptography: pip install 'locus-store[encryption]'"
        ) from exc
    try:
        key = getattr(module, load)(_read(path), **options)
    except (ValueError, TypeError) as exc:
        raise InvalidArgumentError(f"{path} has no such key in PEM, or it has a password") from exc
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise InvalidArgumentError(f"{path} has a key of another kind than Ed25519")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise NotFoundError(f"{path} cannot be read: {exc.strerror}") from exc


class Anchor(NamedTuple):
    """The root of a seal, kept where the administrator of the database cannot change it."""

    store: str
    """The identity of the database."""

    tenant: str
    number: int
    root: str
    sealed_at: str


async def write_anchors(anchors: list[Anchor], target: str | None, command: str | None) -> None:
    """Append anchors to a file or put them in the store of a URL, and pass them to a command.

    Raises:
        BackendError: The file or command failed.
    """
    lines = "".join(json.dumps(it._asdict()) + "\n" for it in anchors)
    try:
        if command is not None:
            _run(command, lines)
        if target is not None and "://" not in target:
            _append(Path(target), lines)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise BackendError(f"the anchors were not written: {exc}") from exc
    if target is not None and "://" in target:
        async with open_store(target) as store:
            for anchor in anchors:
                # The root is in the key, so that a record that is written again replaces no anchor.
                key = f"{anchor.tenant}/{anchor.number:0{_DIGITS}}/{anchor.root}"
                await store.put((ANCHORS, anchor.store), key, anchor._asdict())


def _run(command: str, lines: str) -> None:
    subprocess.run(command, shell=True, input=lines.encode(), check=True)  # noqa: S602  (theirs)


def _append(path: Path, lines: str) -> None:
    with path.open("ab", buffering=len(lines) + 2) as file:  # one write: others append, too
        file.write(lines.encode())


async def read_anchors(target: str, store_id: str) -> list[Anchor]:
    """Return the anchors of a database in a file, or in the store of a URL.

    Raises:
        IntegrityError: The file has another line.
        NotFoundError: There is none: a deleted one must not look like an audit without anchors.
    """
    found: list[Anchor] = []
    if "://" in target:
        after = None
        async with open_store(target) as store:
            while page := await store.list((ANCHORS, store_id), _PAGE, after):
                found += [Anchor(**it.value) for it in page]
                after = page[-1].key
    else:
        try:
            found = [Anchor(**json.loads(it)) for it in _read(Path(target)).splitlines()]
        except (ValueError, TypeError) as exc:
            raise IntegrityError(f"{target} has a line that is not an anchor") from exc
    found = [it for it in found if it.store == store_id]
    if not found:
        raise NotFoundError(
            f"{target} has no anchor of this database ({store_id}); was it replaced, or emptied?"
        )
    return found


def select_roots(anchors: Iterable[Anchor], tenant: str) -> dict[int, str]:
    """Return the roots of a tenant's anchors by the numbers of their seals.

    Raises:
        IntegrityError: Two anchors of one seal have different roots.
    """
    roots: dict[int, str] = {}
    for anchor in anchors:
        if anchor.tenant != tenant:
            continue
        if roots.setdefault(anchor.number, anchor.root) != anchor.root:
            raise IntegrityError(
                f"seal {anchor.number} has anchors with different roots: the audit was cut off"
                " before it, and continued"
            )
    return roots
