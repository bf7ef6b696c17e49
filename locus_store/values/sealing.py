"""Sealed bytes: AES-256-GCM with a key for each record, key commitment, and their place.

A data key never encrypts itself. Each record has 16 random bytes of salt, from which HKDF
(RFC 5869) with SHA-512 derives the key of this record and 32 bytes that commit to it. A key
encrypts one message, so its initialization vector is zero, and the limit of 2**32 random ones of
AES-GCM (NIST SP 800-38D, 8.3) does not apply. AES-GCM alone does not commit to its key: one
ciphertext may have a valid tag under two. The same construction is algorithm suite 0x0478 of the
AWS Encryption SDK
(https://docs.aws.amazon.com/encryption-sdk/latest/developer-guide/algorithms-reference.html) and
DNDK-GCM (draft-gueron-cfrg-dndkgcm), which also derives a key and a commitment.

Sealed bytes: a format byte, the length of the rest as a varint, the id of the data key (8), the
salt (16), the commitment (32), the ciphertext with its tag. They can be joined, as frames can.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, TypeAlias

from locus_store.errors import (
    EncryptionError,
    IntegrityError,
    MissingExtraError,
    make_install_command,
)
from locus_store.values.encoding import encode, find_frame_end, make_varint, read_varint

FORMAT: Final = 0xE1
"""The first byte of sealed bytes; that of a frame is its version, which is small."""

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
_SALT_BYTES, _COMMITMENT_BYTES, _TAG_BYTES = 16, 32, 16
_SALT_AT: Final = KEY_ID_BYTES
_COMMITMENT_AT: Final = _SALT_AT + _SALT_BYTES
_BODY_AT: Final = _COMMITMENT_AT + _COMMITMENT_BYTES
_IV: Final = bytes(12)
_INFO: Final = b"locus-store record 1\x01"
"""The info of HKDF, and the number of its only block."""

DIGEST_BYTES: Final = 16
_LINK_BYTES: Final = 8
_NO_BASIS: Final = bytes(_LINK_BYTES)

Place: TypeAlias = "tuple[str | int | None, ...]"
"""The kind of the sealed bytes, and what names their place."""

RECORD: Final[Place] = ("record",)
"""The place of records of states: their links and the digest of the version name the rest."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that records of one tenant are sealed with."""

    key_id: bytes
    tenant: str
    secret: bytes = field(repr=False)
    digest_secret: bytes = field(repr=False)
    """The key of digests: the same for all data keys of a tenant."""

    def bind(self, digest: bytes, *place: Any) -> bytes:
        """Return the digest of a state at a place: what is stored in the place of ``digest``."""
        named = encode([self.tenant, *place])
        return hmac.digest(self.digest_secret, digest + named, "sha256")[:DIGEST_BYTES]


class UnknownKeyError(EncryptionError):
    """The data key of sealed bytes is not loaded: it is new, or was destroyed."""

    def __init__(self, key_id: bytes) -> None:
        super().__init__(
            f"the data key {key_id.hex()} is not known here: it was destroyed, or belongs to other "
            "keys than encryption= has; the data cannot be read without it"
        )
        self.key_id = key_id


_LOADED: Final[dict[bytes, DataKey]] = {}
"""The data keys of this process by their ids. Sealed bytes name their key, so that rules that
rewrite records need not know whose they are."""


def load_key(key: DataKey) -> None:
    """Make a data key known to ``open_sealed`` and ``open_records``."""
    _LOADED[key.key_id] = key


def unload_key(key_id: bytes) -> None:
    """Forget a data key."""
    _LOADED.pop(key_id, None)


def require_cryptography() -> None:
    """Refuse encryption if its library is not installed.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        _get_cipher()
    except ImportError as exc:
        command = make_install_command("encryption")
        raise MissingExtraError(f"encryption needs cryptography: {command}") from exc


@lru_cache(1)
def _get_cipher() -> tuple[Any, type[Exception]]:
    aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
    return aead.AESGCM, import_module("cryptography.exceptions").InvalidTag


def encrypt(key: bytes, iv: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Return a ciphertext of AES-GCM and its tag."""
    made: bytes = _get_cipher()[0](key).encrypt(iv, plaintext, context)
    return made


def decrypt(key: bytes, iv: bytes, ciphertext: bytes, context: bytes) -> bytes | None:
    """Return the plaintext of ``encrypt``; ``None`` if the tag is another one."""
    cipher, refused = _get_cipher()
    try:
        made: bytes = cipher(key).decrypt(iv, ciphertext, context)
    except refused:
        return None
    return made


def _derive(key: DataKey, salt: bytes) -> tuple[bytes, bytes]:
    """Return the key of a record, and its commitment: HKDF of RFC 5869 with one block."""
    block = hmac.digest(hmac.digest(salt, key.secret, "sha512"), _INFO, "sha512")
    return block[:KEY_BYTES], block[KEY_BYTES:]


def seal(key: DataKey, plaintext: bytes, place: Place, *, is_repeatable: bool = False) -> bytes:
    """Return sealed bytes.

    Args:
        key: The data key.
        plaintext: Of any length.
        place: What ``open_sealed`` has to name again.
        is_repeatable: The salt is a keyed hash of the plaintext and its place, so that the same
            bytes are sealed the same way: equal values are equal, and show that they are.
    """
    associated = encode([FORMAT, key.tenant, *place])
    salt = os.urandom(_SALT_BYTES)
    if is_repeatable:
        salt = hmac.digest(key.digest_secret, b"salt" + associated + plaintext, "sha256")
        salt = salt[:_SALT_BYTES]
    secret, commitment = _derive(key, salt)
    head = key.key_id + salt + commitment
    rest = head + encrypt(secret, _IV, plaintext, head + associated)
    return bytes((FORMAT,)) + make_varint(len(rest)) + rest


def is_sealed(content: bytes) -> bool:
    """Return whether bytes begin as sealed ones do."""
    return content[:1] == b"\xe1"


def get_key_id(content: bytes) -> bytes:
    """Return the id of the data key of sealed bytes."""
    _, at = read_varint(content, 1)
    return content[at : at + KEY_ID_BYTES]


def find_key(content: bytes) -> DataKey:
    """Return the data key of sealed bytes.

    Raises:
        UnknownKeyError: It is not loaded.
    """
    key_id = get_key_id(content)
    key = _LOADED.get(key_id)
    if key is None:
        raise UnknownKeyError(key_id)
    return key


def open_sealed(content: bytes, place: Place, tenant: str | None = None) -> bytes:
    """Return the plaintext of sealed bytes.

    Args:
        content: As ``seal`` made them; nothing behind them.
        place: As it was given to ``seal``.
        tenant: The tenant whose they must be; ``None``: that of their key.

    Raises:
        UnknownKeyError: Their data key is not loaded.
        EncryptionError: They are not sealed, or of another tenant.
        IntegrityError: They were changed, cut off, or stood at another place.
    """
    if not is_sealed(content):
        raise EncryptionError(
            "a stored value is in clear, and encryption is required here: it was written without "
            "encryption=, or put there by another program"
        )
    size, at = read_varint(content, 1)
    rest = content[at:]
    if size != len(rest) or size < _BODY_AT + _TAG_BYTES:
        raise IntegrityError("a sealed value is cut off")
    key = find_key(content)
    if tenant is not None and key.tenant != tenant:
        raise EncryptionError("a stored value is sealed with the key of another tenant")
    secret, commitment = _derive(key, rest[_SALT_AT:_COMMITMENT_AT])
    head = rest[:_BODY_AT]
    found = None
    if hmac.compare_digest(commitment, rest[_COMMITMENT_AT:_BODY_AT]):
        associated = encode([FORMAT, key.tenant, *place])
        found = decrypt(secret, _IV, rest[_BODY_AT:], head + associated)
    if found is None:
        raise IntegrityError(
            "a sealed value is not what was saved: it was changed, or moved from another place"
        )
    return found


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """A record of a chain."""

    payload: bytes
    """Its frames."""

    digest: bytes | None
    """The digest of the state after it; ``None``: it is not sealed."""

    key: DataKey | None
    """Its data key."""

    link: bytes = b""
    """The bytes that stand before the frames in what is sealed."""


def seal_record(key: DataKey, payload: bytes, basis: bytes | None, digest: bytes) -> bytes:
    """Return a sealed record.

    Args:
        key: The data key.
        payload: The frames.
        basis: Digest of the state that they change; ``None``: they are a whole state.
        digest: Digest of the state after them.
    """
    link = _NO_BASIS if basis is None else basis[:_LINK_BYTES]
    return seal(key, link + digest + payload, RECORD)


def reseal(like: OpenedRecord, payload: bytes, basis: bytes | None, digest: bytes) -> bytes:
    """Return a record that replaces another one: sealed if that is."""
    return payload if like.key is None else seal_record(like.key, payload, basis, digest)


def split_records(payload: bytes) -> Iterator[bytes]:
    """Yield the sealed records that were joined, and frames between them.

    Raises:
        IntegrityError: One is cut off, or of an unknown format.
    """
    at, end = 0, len(payload)
    while at < end:
        start = at
        if payload[at] == FORMAT:
            size, at = read_varint(payload, at + 1)
            at += size
        else:
            at = find_frame_end(payload, at)
        if at > end:
            raise IntegrityError("a stored record is cut off")
        yield payload[start:at]


class RecordOpener:
    """Opens the records of one chain in their order, and checks that each continues the last.

    Args:
        tenant: The tenant whose they must be; ``None``: whatever their keys say.
        requires_seal: Refuse a record that is not sealed.
        continues: The first one continues a record that is not here; else it is a whole state.
    """

    def __init__(
        self,
        tenant: str | None = None,
        *,
        requires_seal: bool = False,
        continues: bool = False,
    ) -> None:
        self._tenant = tenant
        self._requires_seal = requires_seal
        self._before = _NO_BASIS
        self._is_known = not continues
        """The state before the next record is known: the last record was sealed."""

    def open(self, payload: bytes) -> OpenedRecord:
        """Return the next record.

        Raises:
            EncryptionError, IntegrityError: See ``open_sealed``; also, it continues another record.
        """
        if not is_sealed(payload) and not self._requires_seal:
            self._is_known = False
            return OpenedRecord(payload, None, None)
        found = open_sealed(payload, RECORD, self._tenant)
        link, digest = found[:_LINK_BYTES], found[_LINK_BYTES : _LINK_BYTES + DIGEST_BYTES]
        if self._is_known and link not in {self._before, _NO_BASIS}:
            raise IntegrityError("a sealed record does not continue the one before it")
        self._before, self._is_known = digest[:_LINK_BYTES], True
        head, frames = found[: len(link + digest)], found[len(link + digest) :]
        return OpenedRecord(frames, digest, find_key(payload), head)

    def open_joined(self, payload: bytes) -> bytes:
        """Return the frames of joined records."""
        return b"".join(self.open(it).payload for it in split_records(payload))


def open_records(payloads: Iterable[bytes]) -> list[OpenedRecord]:
    """Return the records of a chain from its beginning, sealed or not; see ``RecordOpener``."""
    opener = RecordOpener()
    return [opener.open(it) for it in payloads]
