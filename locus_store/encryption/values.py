"""Values of the contracts, sealed and opened: metadata, pending writes, messages, items."""

from __future__ import annotations

import base64
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from locus_store.encryption.keys import TenantKeys
from locus_store.errors import EncryptionError, IntegrityError
from locus_store.types import (
    ArchivedLine,
    ArchivedMessage,
    ArchivedThread,
    ArchivedWrite,
    PendingWrite,
    Save,
    Stored,
    Version,
)
from locus_store.types.items import Put, StoreItem
from locus_store.types.messages import PutMessage, compute_checksum
from locus_store.values import frames
from locus_store.values.encoding import MAX_INT, MIN_INT, UNLIMITED, encode, read_varint
from locus_store.values.frames import Change
from locus_store.values.sealing import (
    Place,
    RecordOpener,
    Subject,
    SubjectKey,
    get_key_id,
    is_sealed,
    make_thread_subject,
    open_sealed,
    seal,
    seal_record,
    split_records,
)
from locus_store.versions.lines import SIDE_BRANCH, make_write_place
from locus_store.versions.removing import compute_payloads_of_chain

T = TypeVar("T")

SEALED: Final = "locus_sealed"
"""The key of metadata, and of an item's value, under which the sealed part is."""

CLEAR: Final = "clear"
"""Stands for values that are not sealed, in counts of data keys."""

TAG_BYTES: Final = 8
"""Length of a tag. That of labels stands behind the sealed part of metadata, or behind its tag."""

CONTENT_LABELS: Final = frozenset({"agent_id", "tags", "user_id"})
"""The labels that are parts of states. The others name classes and channels."""


def make_item_subject(item: Put | StoreItem) -> Subject:
    """Return the subject of an item: the user that its metadata names, or its namespace."""
    user_id = item.metadata.get("user_id")
    return ("user", user_id) if isinstance(user_id, str) else ("items", *item.namespace)


class SealedChange:
    """A change whose payloads are sealed, with the keyed digest; a save reads it as ``Change``.

    Args:
        change: The change, or that of a service's client.
        key: The data key.
        digest: The keyed digest of the version.
    """

    basis_digest = None

    def __init__(self, change: Change, key: SubjectKey, digest: bytes) -> None:
        tree = change.tree
        self.tree = frames.make_opaque_tree(digest, tree.state_bytes)
        self.frames = change.frames
        if self.frames is not None:
            self.frames = seal_record(key, self.frames, change.basis_digest, tree.digest)
        self._change, self._key = change, key
        self._whole: bytes | None = None

    def to_payload(self) -> bytes:
        """Return the sealed payload that holds the whole state."""
        if self._whole is None:
            plain = self._change.to_payload()
            self._whole = seal_record(self._key, plain, None, self._change.tree.digest)
        return self._whole


@dataclass(slots=True, kw_only=True)
class SealedSave(Save):
    """A save of which the storage learns no content."""

    given: Save
    """The save before it was sealed."""

    sealing: Sealing

    def with_id(self, checkpoint_id: str) -> Save:
        """Seal the save again: what is sealed names the id."""
        return self.sealing.seal_save(replace(self.given, checkpoint_id=checkpoint_id))


@dataclass(frozen=True, slots=True)
class Sealing:
    """Seals and opens what one tenant stores.

    Args:
        keys: Of the tenant.
        clear: See ``Encryption``, as ``hashed`` and ``required``.
        required: Refuse what is in clear.
        format: Of what is sealed.
    """

    keys: TenantKeys
    clear: frozenset[str]
    hashed: frozenset[str]
    required: bool
    format: int

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.keys.current.tenant

    def _unseal(self, content: bytes, place: Place) -> bytes:
        return open_sealed(content, place, self.tenant, self.keys.key_ids)[1]

    def _derive(self, subject: Subject) -> SubjectKey:
        return self.keys.current.derive(subject).change_format(self.format)

    def _get_key(self, thread_id: str) -> SubjectKey:
        return self._derive(make_thread_subject(thread_id))

    def seal_fields(
        self, metadata: Mapping[str, Any], labels: Mapping[str, Any], *place: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return metadata and labels of a version; what they hide is sealed in the metadata.

        That is all metadata but the clear keys, and labels that are parts of states. Equal ones
        give equal results. Other labels have a tag, and so has metadata with nothing sealed.
        """
        own, added = _split_labels(labels)
        shown_labels, hidden_labels = self._split_secret(own, CONTENT_LABELS)
        shown, hidden = self._split_secret(metadata, metadata.keys())
        of_labels = self._make_tag("labels", *place, shown_labels)
        named = ("metadata", *place, of_labels.hex(), encode(shown).decode())
        if hidden or hidden_labels:
            content = encode([hidden, hidden_labels] if hidden_labels else hidden)
            sealed = seal(self._get_key(place[0]), content, named)
        else:
            sealed = self._make_tag(*named)
        shown[SEALED] = base64.b64encode(sealed + of_labels).decode()
        return shown, shown_labels | added

    def _split_secret(
        self, values: Mapping[str, Any], secret: AbstractSet[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is stored in clear, or as a keyed hash, and what is sealed."""
        if not values:
            return {}, {}
        hidden = {name: values[name] for name in values.keys() & secret - self.clear}
        shown = {name: it for name, it in values.items() if name not in hidden}
        for name in self.hashed & hidden.keys():
            shown[name] = self.hash_value(name, hidden[name])
        return shown, hidden

    def _make_tag(self, *named: Any) -> bytes:
        """Return what tells stored values, the last ones, from others; empty without labels."""
        return self.keys.current.bind(b"fields", b"", *named)[:TAG_BYTES] if named[-1] else b""

    def open_fields(
        self, metadata: Mapping[str, Any], labels: Mapping[str, Any], *place: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metadata and labels of ``seal_fields``; see ``open_metadata``."""
        opened, hidden, of_labels = self._open_metadata(metadata, place)
        own, added = _split_labels(labels)
        if of_labels is not None:
            _require_same(of_labels, self._make_tag("labels", *place, own), place)
            for name in own.keys() & CONTENT_LABELS - self.clear - hidden.keys():
                self._require_seal(f"the label {name!r} of {place[0]!r}")
        return opened, own | hidden | added

    def open_metadata(self, metadata: Mapping[str, Any], *place: str) -> dict[str, Any]:
        """Return the metadata of ``seal_fields`` alone.

        Raises:
            EncryptionError: It is in clear, and that is refused.
            IntegrityError: It was changed, or belongs to another place.
        """
        return self._open_metadata(metadata, place)[0]

    def _open_metadata(
        self, metadata: Mapping[str, Any], place: Place
    ) -> tuple[dict[str, Any], dict[str, Any], bytes | None]:
        """Return metadata, the sealed labels, and the tag of the others; ``None``: in clear."""
        if SEALED not in metadata:
            self._require_seal(f"the metadata of {place[0]!r}")
            return dict(metadata), {}, None
        shown = {name: it for name, it in metadata.items() if name != SEALED}
        sealed, of_labels = _split_sealed(metadata)
        named = ("metadata", *place, of_labels.hex(), encode(shown).decode())
        found: Any = {}
        if len(sealed) > TAG_BYTES:
            found = orjson.loads(self._unseal(sealed, named))
        else:
            _require_same(sealed, self._make_tag(*named), place)
        hidden, hidden_labels = found if isinstance(found, list) else (found, {})
        for name in shown.keys() - self.clear - hidden.keys():
            self._require_seal(f"the metadata {name!r} of {place[0]!r}")
        return shown | hidden, hidden_labels, of_labels

    def _require_seal(self, what: str) -> None:
        """Refuse what is in clear, if encryption is required."""
        if self.required:
            raise EncryptionError(
                f"{what} is stored in clear, or was removed, and encryption is required here"
            )

    def hash_value(self, name: str, value: Any) -> Any:
        """Return what a value is found by: a keyed hash, or a list of those of its elements.

        Objects are not found by their hash, which is the same for all.
        """
        if isinstance(value, dict):
            value = {}
        if isinstance(value, list | tuple):
            return [self.hash_value(name, it) for it in value]
        if isinstance(value, float) and MIN_INT <= value <= MAX_INT and value.is_integer():
            value = int(value)  # equal numbers have equal hashes
        return base64.b64encode(self.keys.current.bind(b"value", b"", name, value)).decode()

    def seal_save(self, save: Save) -> Save:
        """Return a save of which the storage learns no content."""
        place = save.thread_id, save.namespace, save.checkpoint_id
        digest = self.bind(save.change.tree.digest, place, save.metadata, save.labels)
        change = SealedChange(save.change, self._get_key(save.thread_id), digest)
        metadata, labels = self.seal_fields(save.metadata, save.labels, *place)
        given = {name: getattr(save, name) for name in Save.__slots__}
        sealed = {"change": change, "metadata": metadata, "labels": labels}
        return SealedSave(**given | sealed, given=save, sealing=self)

    def open_version(self, version: Version) -> Version:
        """Return a version with its metadata and labels."""
        place = version.thread_id, version.namespace, version.checkpoint_id
        metadata, labels = self.open_fields(version.metadata, version.labels, *place)
        return replace(version, metadata=metadata, labels=labels)

    def is_digest_of(self, version: Version, digest: bytes) -> bool:
        """Return whether a state of this digest is that of an opened version."""
        place = version.thread_id, version.namespace, version.checkpoint_id
        bound = self.bind(digest, place, version.metadata, version.labels)
        return version.mark.digest in ({bound} if self.required else {bound, digest})

    def bind(self, digest: bytes, place: Place, metadata: Any, labels: Any) -> bytes:
        """Return the keyed digest of a version."""
        own, _ = _split_labels(labels)
        return self.keys.current.bind(b"version", digest, *place, dict(metadata), own)

    def make_opener(self, *, continues: bool = False) -> RecordOpener:
        """Return the opener of a chain's records; see ``RecordOpener``."""
        return RecordOpener(
            self.tenant, self.keys.key_ids, requires_seal=self.required, continues=continues
        )

    def open_records(self, records: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
        """Return records of whole chains, ascending, as (sequence, chain, frames)."""
        openers: dict[int, RecordOpener] = {}
        return [
            (sequence, chain, openers.setdefault(chain, self.make_opener()).open_joined(payload))
            for sequence, chain, payload in records
        ]

    def open_stored(self, answer: Stored) -> Stored:
        """Return a version with its payloads and writes in clear; see ``open_thread``."""
        opener = self.make_opener(continues=answer.basis is not None)
        payloads = [opener.open_joined(it) for it in answer.payloads]  # names an unknown key
        version = self.open_version(answer.version)
        writes = answer.writes
        if writes is not None:
            place = version.thread_id, version.namespace, version.checkpoint_id
            writes = [self.open_write(*place, it) for it in writes]
        is_sealed = opener.digest is not None or (self.required and answer.basis != version.mark)
        if is_sealed and not self.is_digest_of(version, opener.digest or b""):
            raise IntegrityError(
                f"thread {version.thread_id!r}, checkpoint {version.checkpoint_id!r}: its record "
                "belongs to another version, or its metadata was changed"
            )
        return replace(answer, version=version, payloads=payloads, writes=writes)

    def seal_write(
        self, thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
    ) -> PendingWrite:
        """Return a pending write with its payload sealed; an equal one has an equal payload."""
        place = make_write_place(thread_id, namespace, checkpoint_id, write)
        return replace(write, payload=seal(self._get_key(thread_id), write.payload, place))

    def open_write(
        self, thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
    ) -> PendingWrite:
        """Return a pending write with its payload; see ``open_metadata``."""
        if not self.required and not is_sealed(write.payload):
            return write
        place = make_write_place(thread_id, namespace, checkpoint_id, write)
        return replace(write, payload=self._unseal(write.payload, place))

    def seal_put(self, thread_id: str, namespace: str, put: PutMessage) -> PutMessage:
        """Return a message of which the storage learns its id, role and clear metadata."""
        shown, payload = self._seal_content(thread_id, namespace, put)
        digest = compute_checksum(namespace, put.message_id, put.role, shown, None, payload)
        return replace(put, metadata=shown, text=None, payload=payload, digest=digest)

    def seal_message(self, thread_id: str, message: ArchivedMessage) -> ArchivedMessage:
        """Return an archived message, sealed as ``seal_put`` seals message."""
        shown, payload = self._seal_content(thread_id, message.namespace, message)
        return message._replace(metadata=shown, text=None, payload=payload)

    def _seal_content(
        self, thread_id: str, namespace: str, message: PutMessage | ArchivedMessage
    ) -> tuple[dict[str, Any], bytes]:
        shown = {name: it for name, it in message.metadata.items() if name in self.clear}
        hidden = {name: it for name, it in message.metadata.items() if name not in self.clear}
        beside = encode([hidden, message.text, message.payload is not None])
        content = len(beside).to_bytes(4, "little") + beside + (message.payload or b"")
        names = thread_id, namespace, message.message_id, message.role
        place = ("message", *names, encode(shown).decode())
        return shown, seal(self._get_key(thread_id), content, place)

    def open_message(self, thread_id: str, message: ArchivedMessage) -> ArchivedMessage:
        """Return a stored message; see ``open_metadata``."""
        payload = message.payload or b""
        if not self.required and not is_sealed(payload):
            return message
        names = thread_id, message.namespace, message.message_id, message.role
        content = self._unseal(payload, ("message", *names, encode(message.metadata).decode()))
        end = 4 + int.from_bytes(content[:4], "little")
        hidden, text, has_payload = orjson.loads(content[4:end])
        metadata = {**message.metadata, **hidden}
        return message._replace(
            metadata=metadata, text=text, payload=content[end:] if has_payload else None
        )

    def seal_thread(self, thread: ArchivedThread) -> ArchivedThread:
        """Return a thread as it is stored; its digests are those of its states."""
        return replace(
            thread,
            lines=[self._seal_line(thread.thread_id, it) for it in thread.lines],
            messages=[self.seal_message(thread.thread_id, it) for it in thread.messages],
        )

    def _seal_line(self, thread_id: str, line: ArchivedLine) -> ArchivedLine:
        before: dict[int, bytes] = {}
        records, key = [], self._get_key(thread_id)
        for record in line.records:
            place = thread_id, line.namespace, record.checkpoint_id
            payload = seal_record(key, record.payload, before.get(record.chain), record.digest)
            before[record.chain] = record.digest
            metadata, labels = self.seal_fields(record.metadata, record.labels, *place)
            sealed = replace(
                record,
                digest=self.bind(record.digest, place, record.metadata, record.labels),
                metadata=metadata,
                labels=labels,
                payload=payload,
            )
            records.append(sealed)
        return replace(line, records=records, writes=_map_writes(self.seal_write, thread_id, line))

    def open_thread(self, thread: ArchivedThread) -> ArchivedThread:
        """Return a thread with its contents, and the digests of its states.

        Raises:
            EncryptionError, IntegrityError: A part of it is not what was saved, or in clear.
        """
        return replace(
            thread,
            lines=[self._open_line(thread.thread_id, it) for it in thread.lines],
            messages=[self.open_message(thread.thread_id, it) for it in thread.messages],
        )

    def replace_joined(self, line: ArchivedLine) -> ArchivedLine:
        """Return a stored line with one change in the place of each that a service has joined.

        The content of the removed versions is left out.
        """
        changed: dict[int, bytes] = {}
        chains: dict[int, list[tuple[int, bytes]]] = {}
        for record in line.records:
            pieces = list(split_records(record.payload))
            if not any(map(is_sealed, pieces)):
                pieces = [record.payload]
            *before, own = pieces
            rows = chains.setdefault(record.chain, [])
            rows += [(-len(rows) - nth, it) for nth, it in enumerate(before, 1)]
            rows.append((record.sequence, own))
        for rows in chains.values():
            gone = {at for at, _ in rows if at < 0}
            open_each = partial(map, self.make_opener().open)
            changed |= compute_payloads_of_chain(rows, gone, UNLIMITED, open_each)
        records = [replace(it, payload=changed.get(it.sequence, it.payload)) for it in line.records]
        return replace(line, records=records)

    def _open_line(self, thread_id: str, line: ArchivedLine) -> ArchivedLine:
        openers: dict[int, RecordOpener] = {}
        records = []
        for record in self.replace_joined(line).records:
            place = thread_id, line.namespace, record.checkpoint_id
            found = openers.setdefault(record.chain, self.make_opener()).open(record.payload)
            metadata, labels = self.open_fields(record.metadata, record.labels, *place)
            digest = record.digest if found.digest is None else found.digest
            bound = self.bind(digest, place, metadata, labels)
            if found.digest is not None and bound != record.digest:
                raise IntegrityError(
                    f"thread {thread_id!r}, checkpoint {record.checkpoint_id!r}: its record "
                    "belongs to another version, or its metadata was changed"
                )
            opened = replace(
                record, digest=digest, metadata=metadata, labels=labels, payload=found.payload
            )
            records.append(opened)
        return replace(line, records=records, writes=_map_writes(self.open_write, thread_id, line))

    def seal_line(self, thread_id: str, line: bytes, before: bytes) -> bytes:
        """Return a line of an archived thread, sealed behind the sealed line before it."""
        tag = before[-16:].hex()  # differs for each sealed line; of none, it is empty
        return seal(self._get_key(thread_id), line, ("archive", tag))

    def open_line(self, content: bytes, before: bytes) -> bytes:
        """Return the line of ``seal_line``; see ``open_metadata``."""
        return self._unseal(content, ("archive", before[-16:].hex()))

    def seal_item(self, put: Put) -> Put:
        """Return a put of which the storage learns the name and the clear metadata."""
        place = ("item", *put.namespace, put.key)
        shown = {name: it for name, it in put.metadata.items() if name in self.clear}
        hidden = {name: it for name, it in put.metadata.items() if name not in self.clear}
        named = (*place, encode(shown).decode())
        key = self._derive(make_item_subject(put))
        sealed = seal(key, b"[%b,%b]" % (put.json, encode(hidden)), named)
        value = {SEALED: base64.b64encode(sealed).decode()}
        return replace(put, json=encode(value), metadata=shown)

    def open_item(self, item: StoreItem) -> StoreItem:
        """Return a stored item; see ``open_metadata``."""
        value = item.value
        if not isinstance(value, dict) or value.keys() != {SEALED}:
            self._require_seal(f"item {item.key!r} of namespace {item.namespace!r}")
            return item
        try:
            sealed = base64.b64decode(value[SEALED], validate=True)
        except (TypeError, ValueError) as exc:
            raise IntegrityError(f"item {item.key!r} is not base64") from exc
        place = ("item", *item.namespace, item.key, encode(item.metadata).decode())
        opened, hidden = orjson.loads(self._unseal(sealed, place))
        return replace(item, value=opened, metadata={**item.metadata, **hidden})


def _map_writes(
    change: Callable[..., PendingWrite], thread_id: str, line: ArchivedLine
) -> list[ArchivedWrite]:
    place = thread_id, line.namespace
    return [replace(it, write=change(*place, it.checkpoint_id, it.write)) for it in line.writes]


def require_answer(is_answer: bool) -> None:
    """Refuse a result that is authentic, and not what was asked for."""
    if not is_answer:
        raise IntegrityError("the storage gave another version, message or item than was asked for")


def _split_sealed(metadata: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the sealed part of metadata, or its tag, and the tag of labels."""
    try:
        sealed = base64.b64decode(metadata.get(SEALED, ""), validate=True)
    except (TypeError, ValueError) as exc:
        raise IntegrityError("sealed metadata is not base64") from exc
    size, at = read_varint(sealed, 1) if len(sealed) > 2 * TAG_BYTES else (TAG_BYTES, 0)
    return sealed[: at + size], sealed[at + size :]


def _require_same(tag: bytes, other: bytes, place: Place) -> None:
    if not hmac.compare_digest(tag, other):
        raise IntegrityError(
            f"metadata or labels of {place[0]!r} were changed, removed or moved, or have other keys"
        )


def _split_labels(labels: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the labels of a save, and that of a side branch, which the storage adds itself."""
    own = dict(labels)
    added = {SIDE_BRANCH: own.pop(SIDE_BRANCH)} if SIDE_BRANCH in own else {}
    return own, added


def count_keys(thread: ArchivedThread | None) -> Counter[str]:
    """Return how many values of a stored thread each data key has sealed; ``clear``: none."""
    if thread is None:
        return Counter()
    values = [it.payload or b"" for it in thread.messages]
    for line in thread.lines:
        values += [it.payload for it in line.records] + [it.write.payload for it in line.writes]
        hidden = (_split_sealed(it.metadata)[0] for it in line.records)
        values += [it for it in hidden if len(it) > TAG_BYTES]
    return Counter(get_key_id(it).hex() if is_sealed(it) else CLEAR for it in values)


def count_item_key(item: StoreItem) -> str:
    """Return the id of the data key of a stored item; ``clear``: it is not sealed."""
    value = item.value
    is_item = isinstance(value, dict) and value.keys() == {SEALED}
    return get_key_id(base64.b64decode(value[SEALED])).hex() if is_item else CLEAR
