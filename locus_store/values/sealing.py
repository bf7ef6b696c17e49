"""Sealed bytes: AES-256-GCM with a key for each record, key commitment, and their place.

A data key never encrypts itself. Each *subject* (a thread, the items of a user) has a key, derived
from the data key and the subject's share. The shares are the leaves of a binary tree of hashes, in
which a node gives all leaves below it (Goldreich, Goldwasser, Micali, 1986). To destroy a share,
the node above it is replaced with those that give the other leaves (a puncturable pseudorandom
function: Boneh, Waters, 2013). So nothing is stored or read for a subject until it is forgotten.

Each record has 12 random bytes of salt, from which HKDF-Expand (RFC 5869, 3.3: the key is random
already) with SHA-512 derives the key of this record and 32 bytes that commit to it. A key encrypts
one message, so its initialization vector is zero, and the limit of 2**32 random ones of AES-GCM
(NIST SP 800-38D, 8.3) holds for the salts of a subject. AES-GCM alone does not commit to its key:
one ciphertext may have a valid tag under two. The same construction is algorithm suite 0x0478 of
the AWS Encryption SDK and DNDK-GCM (draft-gueron-cfrg-dndkgcm), which also derives both
(https://docs.aws.amazon.com/encryption-sdk/latest/developer-guide/algorithms-reference.html).

A client of a service seals with keys that the service does not have. Its records have a format of
their own, which no rule opens that rewrites records.

Sealed bytes: format, length of the rest (a varint), id of the data key (6), leaf of the subject
(6), salt (12), commitment (32), ciphertext with its tag. They can be joined, as frames can.

*Repeatable* values are sealed the same way again. They have a synthetic initialization vector (SIV:
Rogaway, Shrimpton, 2006; RFC 5297): 16 bytes of keyed BLAKE2b (RFC 7693) of what is authenticated
and of the plaintext; 12 of them, for which the limit holds, too, are the IV of AES-256 in counter
mode. Opening computes it again from what it decrypts: it is the tag, and commits to the key, with
64 bits, as the hash resists collisions. Both keys are the subject's: other keys of its tenant check
no guess. The place names the thread, so the number of its leaf (a varint) stands for the leaf.
The bytes: format, length, id of the data key, number, ciphertext, SIV.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from typing import Any, Final, TypeAlias

from locus_store.errors import EncryptionError, IntegrityError
from locus_store.values.encoding import (
    SEALED_FORMATS,
    encode,
    find_frame_end,
    make_varint,
    read_varint,
)

FORMAT: Final = 0xE1
"""The first byte of sealed bytes; that of a frame is its version, which is small."""

CLIENT_FORMAT: Final = 0xE2
"""The same of what a client of a service has sealed."""

SEALED_BYTES: Final = 4096
"""Bytes that a client has sealed may be longer than a state by this."""

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 6
LEAF_BYTES: Final = 6
_DEPTH: Final = 8 * LEAF_BYTES
NODE_BYTES: Final = 16
ROOT: Final = 1
"""The number of the root; the children of a node ``n`` are ``2 * n`` and ``2 * n + 1``."""

_SALT_BYTES, _COMMITMENT_BYTES, _SIV_BYTES = 12, 32, 16
_SALT_AT: Final = KEY_ID_BYTES + LEAF_BYTES
_COMMITMENT_AT: Final = _SALT_AT + _SALT_BYTES
_BODY_AT: Final = _COMMITMENT_AT + _COMMITMENT_BYTES
_IV: Final = bytes(12)
_INFO: Final = b"locus-store record 1"
"""The info of HKDF before the salt."""

_REPEATABLE: Final = b"locus-store repeatable 1"
"""The info of HKDF for the two keys of repeatable values."""

DIGEST_BYTES: Final = 16
_LINK_BYTES: Final = 8
_NO_BASIS: Final = bytes(_LINK_BYTES)

Place: TypeAlias = "tuple[str | int | None, ...]"
"""The kind of the sealed bytes, and what names their place."""

REPEATABLE: Final = frozenset({"metadata", "write"})
"""The kinds of repeatable values. Their places name the thread behind the kind."""

RECORD: Final[Place] = ("record",)
"""The place of records of states: their links and the digest of the version name the rest."""

Subject: TypeAlias = "tuple[str, ...]"
"""Whatever is forgotten as a whole: its kind, and its name."""

THREAD: Final = "thread"
"""The kind of a subject that is a thread."""


def make_thread_subject(thread_id: str) -> Subject:
    """Return the subject of all that a thread owns."""
    return THREAD, thread_id


class UnknownKeyError(EncryptionError):
    """The data key of sealed bytes is not loaded: it is new, or was destroyed."""

    reason = "is not known here: it was destroyed, or belongs to other keys than encryption= has"

    @classmethod
    def make(cls, key_id: bytes) -> UnknownKeyError:
        """Return the error of a key."""
        return cls(f"the data key {key_id.hex()} {cls.reason}")


class ForgottenError(UnknownKeyError):
    """The key of a thread, or of items, was destroyed."""

    reason = "was destroyed when its owner was forgotten; what it sealed can only be deleted"


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A key that the records of one subject are sealed with."""

    data_key: DataKey
    leaf: bytes
    """The number of the share, which is a hash of the subject."""

    mac: hmac.HMAC = field(repr=False)
    """HMAC-SHA-512 with the key, which is copied: a new one asks OpenSSL for the hash each time."""

    repeatable: tuple[bytes, Any] = field(repr=False)
    """The key of the hash of repeatable values, and their cipher."""

    number: int = 0
    """The number of leaves that the subject had before."""

    format: int = FORMAT
    """The format of what it seals."""

    def change_format(self, number: int) -> SubjectKey:
        """Return this key, which seals in another format."""
        return self if self.format == number else replace(self, format=number)

    @property
    def key_id(self) -> bytes:
        """The id of the data key and the leaf: sealed bytes have these."""
        return self.data_key.key_id + self.leaf


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key of one tenant, from which the keys of its subjects are derived."""

    key_id: bytes
    tenant: str
    secret: bytes = field(repr=False)
    digest_secret: bytes = field(repr=False)
    """The key of digests: the same for all data keys of a tenant."""

    nodes: Mapping[int, bytes] = field(repr=False, hash=False)
    """The nodes of the tree that are left, by their numbers."""

    _derived: dict[bytes | Subject, SubjectKey] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def bind(self, purpose: bytes, content: bytes, *place: Any) -> bytes:
        """Return a keyed hash of content and its place, such as the digest of a version."""
        return self.hash(purpose, encode([self.tenant, len(content), *place]) + content)

    def hash(self, purpose: bytes, content: bytes) -> bytes:
        """Return 16 bytes of keyed BLAKE2b (RFC 7693); a purpose has up to 16 bytes."""
        secret = self.digest_secret
        return blake2b(content, key=secret, digest_size=DIGEST_BYTES, person=purpose).digest()

    def derive(self, subject: Subject) -> SubjectKey:
        """Return the key that seals what a subject stores from now on.

        A subject that was forgotten, and is used again, has another leaf.
        """
        number = 0
        while (found := self._derived.get(subject)) is None:
            with suppress(ForgottenError):
                self._derived[subject] = self.derive_again(subject, number)
            number += 1
        return found

    def derive_again(self, subject: Subject, number: int) -> SubjectKey:
        """Return the key of a subject that had so many leaves before; see ``find``."""
        leaf = self.hash(b"leaf", encode([self.tenant, number, *subject]))[:LEAF_BYTES]
        return replace(self.find(leaf), number=number)

    def find(self, leaf: bytes) -> SubjectKey:
        """Return the key of a leaf.

        Raises:
            ForgottenError: It was destroyed.
        """
        found = self._derived.get(leaf)
        if found is None:
            number = 1 << _DEPTH | int.from_bytes(leaf)
            above = _find_above(self.nodes, number)
            if above is None:
                raise ForgottenError.make(self.key_id + leaf)
            node = self.nodes[number >> above]
            for at in reversed(range(above)):
                node = _make_child(node, number >> at)
            if len(self._derived) > _MOST_DERIVED:
                self._derived.clear()
            mac = hmac.new(hmac.digest(self.secret, node, "sha256"), digestmod="sha512")
            key, other = _expand(mac, _REPEATABLE)
            repeatable = key, get_cipher()[0](other)
            found = self._derived[leaf] = SubjectKey(self, leaf, mac, repeatable)
        return found

    def puncture(self, subjects: Iterable[Subject]) -> tuple[dict[int, bytes], list[bytes]]:
        """Return the nodes without the shares of subjects, and the leaves of these."""
        nodes, leaves = dict(self.nodes), [self.derive(it).leaf for it in subjects]
        for leaf in leaves:
            number = 1 << _DEPTH | int.from_bytes(leaf)
            above = _find_above(nodes, number)
            if above is None:
                continue
            node = nodes.pop(number >> above)
            for at in reversed(range(above)):
                nodes[number >> at ^ 1] = _make_child(node, number >> at ^ 1)
                node = _make_child(node, number >> at)
        return nodes, leaves


_MOST_DERIVED: Final = 20_000


def _find_above(nodes: Mapping[int, bytes], number: int) -> int | None:
    """Return how far above a leaf the node is that it is computed from."""
    return next((it for it in range(_DEPTH + 1) if number >> it in nodes), None)


def _make_child(node: bytes, number: int) -> bytes:
    return hmac.digest(node, b"\x01" if number & 1 else b"\x00", "sha256")[:NODE_BYTES]


class SealedByClientError(EncryptionError):
    """A client of this service has sealed the bytes; the storage does not have the key."""

    def __init__(
        self,
        message: str = "a client of the service has sealed it with keys of its own: only clients "
        "that have them can read it, or change what other versions are rebuilt from",
    ) -> None:
        super().__init__(message)


LOADED: Final[dict[bytes, DataKey]] = {}
"""The data keys of this process by their ids. Sealed bytes name their key, so that rules that
rewrite records need not know whose they are."""


@lru_cache(1)
def get_cipher() -> tuple[Any, type[Exception]]:
    """Return AES-GCM, and what it raises."""
    aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
    return aead.AESGCM, import_module("cryptography.exceptions").InvalidTag


def encrypt(key: bytes, iv: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Return a ciphertext of AES-GCM and its tag."""
    return bytes(get_cipher()[0](key).encrypt(iv, plaintext, context))


def decrypt(key: bytes, iv: bytes, ciphertext: bytes, context: bytes) -> bytes | None:
    """Return the plaintext of ``encrypt``; ``None`` if the tag is another one."""
    cipher, refused = get_cipher()
    try:
        return bytes(cipher(key).decrypt(iv, ciphertext, context))
    except refused:
        return None


def _expand(mac: hmac.HMAC, info: bytes) -> tuple[bytes, bytes]:
    """Return two keys, or a key and its commitment: HKDF-Expand of RFC 5869 with one block."""
    mac = mac.copy()
    mac.update(info + b"\x01")
    block = mac.digest()
    return block[:KEY_BYTES], block[KEY_BYTES:]


def _associate(key: SubjectKey, place: Place) -> bytes:
    """Return what is authenticated with sealed bytes."""
    return encode([key.format, key.data_key.tenant, *place])


def seal(key: SubjectKey, plaintext: bytes, place: Place) -> bytes:
    """Return sealed bytes.

    Args:
        key: Of the subject.
        plaintext: Of any length.
        place: What ``open_sealed`` has to name again. If its kind is in ``REPEATABLE``, equal
            values are equal, and show that they are.
    """
    associated = _associate(key, place)
    if place[0] in REPEATABLE:
        head = key.data_key.key_id + make_varint(key.number)
        siv = _compute_siv(key, head + associated + plaintext)
        rest = head + _mask(key, siv, plaintext) + siv
    else:
        salt = os.urandom(_SALT_BYTES)
        secret, commitment = _expand(key.mac, _INFO + salt)
        head = key.key_id + salt + commitment
        rest = head + encrypt(secret, _IV, plaintext, head + associated)
    return bytes((key.format,)) + make_varint(len(rest)) + rest


def _compute_siv(key: SubjectKey, content: bytes) -> bytes:
    return blake2b(content, key=key.repeatable[0], digest_size=_SIV_BYTES).digest()


def _mask(key: SubjectKey, siv: bytes, content: bytes) -> bytes:
    """Return content encrypted, or decrypted, in counter mode: that of AES-GCM, without its tag."""
    return bytes(key.repeatable[1].encrypt(siv[: len(_IV)], content, None)[: len(content)])


def is_sealed(content: bytes) -> bool:
    """Return whether bytes begin as sealed ones do."""
    return content[:1] in {b"\xe1", b"\xe2"}


def is_sealed_by_client(content: bytes) -> bool:
    """Return whether bytes begin as those that a client of a service has sealed."""
    return content[:1] == b"\xe2"


def get_key_id(content: bytes) -> bytes:
    """Return the id of the data key of sealed bytes."""
    _, at = read_varint(content, 1)
    return content[at : at + KEY_ID_BYTES]


def open_sealed(
    content: bytes, place: Place, tenant: str | None = None, key_ids: Container[bytes] | None = None
) -> tuple[SubjectKey, bytes]:
    """Return the key of sealed bytes, which seals in their format, and their plaintext.

    Args:
        content: As ``seal`` made them; nothing behind them.
        place: As it was given to ``seal``.
        tenant: Whose they must be; ``None``: that of their key, in a rule that knows no tenant.
        key_ids: The data keys of the storage, as the process may have others, too; ``None``: any.

    Raises:
        UnknownKeyError: Their data key is not loaded, or their key was destroyed.
        SealedByClientError: A rule opens what a client of a service has sealed.
        EncryptionError: They are not sealed, or of another tenant.
        IntegrityError: They were changed, cut off, or stood at another place.
    """
    if not is_sealed(content):
        raise EncryptionError(
            "a stored value is in clear, and encryption is required here: it was written without "
            "encryption=, or put there by another program"
        )
    if tenant is None and is_sealed_by_client(content):
        raise SealedByClientError
    size, at = read_varint(content, 1)
    if size != len(content) - at or size < KEY_ID_BYTES + _SIV_BYTES:
        raise IntegrityError("a sealed value is cut off")
    key_id = content[at : at + KEY_ID_BYTES]
    data_key = LOADED.get(key_id)
    if data_key is None or (key_ids is not None and key_id not in key_ids):
        raise UnknownKeyError.make(key_id)
    if tenant is not None and data_key.tenant != tenant:
        raise EncryptionError("a stored value is sealed with the key of another tenant")
    if place[0] in REPEATABLE:
        key, found = _open_repeatable(data_key, content, at, place)
    else:
        head, body = content[at : at + _BODY_AT], content[at + _BODY_AT :]
        key, found = data_key.find(head[KEY_ID_BYTES:_SALT_AT]).change_format(content[0]), None
        secret, commitment = _expand(key.mac, _INFO + head[_SALT_AT:_COMMITMENT_AT])
        if hmac.compare_digest(commitment, head[_COMMITMENT_AT:]):
            found = decrypt(secret, _IV, body, head + _associate(key, place))
    if found is None:
        raise IntegrityError(
            "a sealed value is not what was saved: it was changed, or moved from another place"
        )
    return key, found


def _open_repeatable(
    data_key: DataKey, content: bytes, at: int, place: Place
) -> tuple[SubjectKey, bytes | None]:
    body, siv = content[:-_SIV_BYTES], content[-_SIV_BYTES:]
    subject = make_thread_subject(str(place[1]))
    newest = data_key.derive(subject)
    try:
        number, begin = read_varint(body, at + KEY_ID_BYTES)
    except IntegrityError:  # two bytes of a value of another kind are no number
        return newest, None
    key = newest if newest.number == number else data_key.derive_again(subject, number)
    key = key.change_format(content[0])
    found = _mask(key, siv, body[begin:])
    expected = _compute_siv(key, body[at:begin] + _associate(key, place) + found)
    return key, found if hmac.compare_digest(siv, expected) else None


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """A record of a chain."""

    payload: bytes
    """Its frames."""

    digest: bytes | None
    """The digest of the state after it; ``None``: it is not sealed."""

    key: SubjectKey | None
    """Its key."""

    link: bytes = b""
    """The bytes that stand before the frames in what is sealed."""


def seal_record(key: SubjectKey, payload: bytes, basis: bytes | None, digest: bytes) -> bytes:
    """Return a sealed record.

    Args:
        key: Of the thread.
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
        if payload[at] in SEALED_FORMATS:
            size, at = read_varint(payload, at + 1)
            at += size
        else:
            at = find_frame_end(payload, at)
        if at > end:
            raise IntegrityError("a stored record is cut off")
        yield payload[start:at]


@dataclass(slots=True, eq=False)
class RecordOpener:
    """Opens the records of one chain in their order, and checks that each continues the last."""

    tenant: str | None = None
    """The tenant whose they must be; ``None``: see ``open_sealed``."""

    key_ids: Container[bytes] | None = None
    requires_seal: bool = False
    """Refuse a record that is not sealed."""

    continues: bool = False
    """The next one continues a record that is not here, or was not sealed: its basis is unknown."""

    digest: bytes | None = field(default=None, init=False)
    """The digest of the state after the last record; ``None``: it was not sealed."""

    _before: bytes = field(default=_NO_BASIS, init=False)

    def open(self, payload: bytes) -> OpenedRecord:
        """Return the next record.

        Raises:
            EncryptionError, IntegrityError: See ``open_sealed``; also, it continues another record.
        """
        if not is_sealed(payload) and not self.requires_seal:
            self.continues, self.digest = True, None
            return OpenedRecord(payload, None, None)
        key, found = open_sealed(payload, RECORD, self.tenant, self.key_ids)
        link, digest = found[:_LINK_BYTES], found[_LINK_BYTES : _LINK_BYTES + DIGEST_BYTES]
        if not self.continues and link not in {self._before, _NO_BASIS}:
            raise IntegrityError("a sealed record does not continue the one before it")
        self._before, self.continues, self.digest = digest[:_LINK_BYTES], False, digest
        return OpenedRecord(found[len(link + digest) :], digest, key, link + digest)

    def open_joined(self, payload: bytes) -> bytes:
        """Return the frames of joined records."""
        return b"".join(self.open(it).payload for it in split_records(payload))


def open_records(payloads: Iterable[bytes]) -> list[OpenedRecord]:
    """Return the records of a chain from its beginning, sealed or not; see ``RecordOpener``."""
    return list(map(RecordOpener().open, payloads))
