"""The data keys of tenants, wrapped by a key ring and kept in a store of their own."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final, NamedTuple

from locus_store.encryption.rings import KeyRing, ask_ring, read_ring, require_cryptography
from locus_store.errors import ConflictError, EncryptionError, InvalidArgumentError
from locus_store.runtime.gathering import PerLoop
from locus_store.store import BaseStore
from locus_store.types.items import Change, Namespace, Put, Remove, StoreItem
from locus_store.values.encoding import encode
from locus_store.values.sealing import (
    KEY_BYTES,
    KEY_ID_BYTES,
    LEAF_BYTES,
    LOADED,
    NODE_BYTES,
    ROOT,
    DataKey,
    Subject,
)

REFRESH_SECONDS: Final = 60.0
"""A process learns of new and destroyed data keys at least this often."""

DESTROYED: Final = "destroyed by `db keys destroy` at"
"""In the error of a value whose data key was."""

_ROOT: Final = "data-keys"
_RECEIPTS: Final = "destroyed-data-keys"
_NOTED: Final = "keys-to-destroy"
_PAGE: Final = 100
_MOST_KEYS: Final = 10_000

HasValues = Callable[[], Awaitable[bool]]


class TenantKeys(NamedTuple):
    """The data keys of a tenant."""

    current: DataKey
    """Seals from now on."""

    number: int
    key_ids: frozenset[bytes]
    loaded_at: float


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """A data key, as ``Encryption.list_keys`` lists it."""

    tenant: str
    number: int
    """Ascending; the last one of a tenant seals."""

    key_id: str
    wrapped_by: str
    """The name of the key of a ``LocalKeyRing``; empty for another ring."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that keys of a tenant were destroyed: its data keys, or those of some data."""

    tenant: str
    key_ids: list[str]
    """In hexadecimal: values that one has sealed have these bytes after their length."""

    destroyed_at: str

    def __str__(self) -> str:
        named = ", ".join(self.key_ids) or "none"
        return f"tenant {self.tenant!r}: destroyed keys {named} at {self.destroyed_at}"


class Encryption:
    """Encrypts what a storage keeps; for ``encryption=`` of ``open_storage`` and the others.

    Args:
        ring: Wraps the data keys.
        keys: A store for the wrapped data keys. It should not be in the database that is encrypted:
            a backup that has the data and the wrapped keys outlives the destruction of a key.
        clear: Keys of metadata that are stored in clear, so that queries find them: for example
            ``user_id``. All others are encrypted; a query of them decrypts every thread.
        hashed: Keys of metadata that are encrypted, and stored as keyed hashes beside, so that
            queries of equal values find them.
        required: Refuse what is stored in clear. ``False`` while a storage is converted.

    Raises:
        MissingExtraError: ``cryptography`` is not installed.
    """

    def __init__(
        self,
        ring: KeyRing,
        keys: BaseStore,
        *,
        clear: Collection[str] = (),
        hashed: Collection[str] = (),
        required: bool = True,
    ) -> None:
        require_cryptography()
        for name, given in (("clear", clear), ("hashed", hashed)):
            is_list = isinstance(given, Collection) and not isinstance(given, str)
            if not is_list or not all(isinstance(it, str) for it in given):
                raise InvalidArgumentError(f"{name}={given!r} must be a list of keys of metadata")
        if both := set(clear) & set(hashed):
            raise InvalidArgumentError(f"{min(both)!r} is in clear= and in hashed=: choose one")
        self.ring = ring
        self.keys = keys
        self.clear = frozenset(clear)
        self.hashed = frozenset(hashed)
        self.required = required
        self._known: dict[str, TenantKeys] = {}
        self._loading: PerLoop[dict[str, asyncio.Future[TenantKeys]]] = PerLoop(dict)

    def __repr__(self) -> str:
        keys = f"clear={sorted(self.clear)}, hashed={sorted(self.hashed)}"
        return f"Encryption({self.ring!r}, {keys}, required={self.required})"

    @classmethod
    def read(cls, source: str) -> Encryption:
        """Return the encryption that a JSON file, or ``env:NAME`` an environment variable, has.

        Its fields: ``keys`` (names to keys of 32 bytes in base64), ``current`` (a name),
        ``data_keys`` (the URL of the store of data keys), ``clear``, ``hashed`` and ``required``.

        Raises:
            InvalidArgumentError: It cannot be read, or a field is not valid.
        """
        ring, fields = read_ring(source)
        store = import_module("locus_store.open").open_store(str(fields["data_keys"]))
        named = {it: fields.get(it, ()) for it in ("clear", "hashed")}
        return cls(ring, store, **named, required=fields.get("required", True))

    def get(self, tenant: str) -> TenantKeys | None:
        """Return a tenant's keys, if they are loaded and fresh."""
        found = self._known.get(tenant)
        is_fresh = found is not None and time.monotonic() - found.loaded_at < REFRESH_SECONDS
        return found if is_fresh else None

    def get_loaded(self, tenant: str) -> TenantKeys:
        """Return a tenant's keys as they were loaded last.

        Raises:
            EncryptionError: They were destroyed since.
        """
        found = self._known.get(tenant)
        if found is None:
            raise EncryptionError(f"the data keys of tenant {tenant!r} were destroyed")
        return found

    async def get_or_load(self, tenant: str, has_values: HasValues | None = None) -> TenantKeys:
        """Return a tenant's keys, as ``load``; calls that wait share one question to the ring."""
        found = self.get(tenant)
        if found is not None:
            return found
        loading = self._loading.get()

        def finish(task: asyncio.Future[TenantKeys]) -> None:
            del loading[tenant]
            task.cancelled() or task.exception()  # an error that is not asked for is logged

        if tenant not in loading:
            loading[tenant] = asyncio.ensure_future(self.load(tenant, has_values))
            loading[tenant].add_done_callback(finish)
        return await asyncio.shield(loading[tenant])

    async def load(self, tenant: str, has_values: HasValues | None = None) -> TenantKeys:
        """Read a tenant's keys; create the first one if there is none.

        A key that seals here is put back if the store has lost it: it was restored, or a fail-over
        lost the put. ``has_values`` returns whether a storage has what a key of the tenant sealed.

        Raises:
            EncryptionError: The ring does not unwrap one, or all were lost.
        """
        items, old = await self._list(tenant), self._known.get(tenant)
        if old and await self._is_lost(old, items):
            key = old.current
            await self._create(tenant, old.number + 1, key.secret + key.digest_secret, key.nodes)
            items = await self._list(tenant)
        if not items:
            has_some = has_values and not await self.list_receipts(tenant) and await has_values()
            if has_some and not await self._list(tenant):  # else another process was the first
                raise EncryptionError(
                    f"the store of data keys has no key of tenant {tenant!r}, and no receipt of "
                    "its destruction, but the storage has values that one has sealed: restore that "
                    "store from its backup, or delete those values without encryption="
                )
            await self._create(tenant, 1, os.urandom(2 * KEY_BYTES))
            if not (items := await self._list(tenant)):
                raise EncryptionError(
                    "the store of data keys does not list the key that it has just stored: with "
                    "OpenSearch, its URL needs refresh=wait"
                )
        keys = [await self._unwrap(tenant, it) for it in items]
        LOADED.update({key.key_id: key for key in keys})
        key_ids, number = frozenset(it.key_id for it in keys), int(items[-1].key)
        made = TenantKeys(keys[-1], number, key_ids, time.monotonic())
        self._known[tenant] = made
        for key_id in old.key_ids - made.key_ids if old else ():
            LOADED.pop(key_id, None)
        return made

    async def has_keys(self, tenant: str) -> bool:
        """Return whether a tenant has data keys, without creating one."""
        return self.get(tenant) is not None or bool(await self._list(tenant))

    async def _list(self, tenant: str) -> list[StoreItem]:
        return await self.keys.list(_name(tenant), limit=_MOST_KEYS)

    async def _is_lost(self, old: TenantKeys, items: Sequence[StoreItem]) -> bool:
        """Return whether the newest key is not stored, and was neither retired nor destroyed."""
        key, key_id = old.current, old.current.key_id.hex()
        if any(int(it.key) > old.number or it.value["key_id"] == key_id for it in items):
            return False
        return not any(key_id in it.key_ids for it in await self.list_receipts(key.tenant))

    async def _create(
        self, tenant: str, number: int, secrets: bytes, nodes: Mapping[int, bytes] | None = None
    ) -> None:
        """Store a data key, unless another process has done so."""
        key_id = _compute_key_id(secrets)
        wrapped = await self._wrap(secrets, _make_context(tenant, number, key_id.hex()), key_id)
        value = {
            "key_id": key_id.hex(),
            "wrapped": base64.b64encode(wrapped).decode(),
            "nodes": _pack_nodes(nodes or {ROOT: os.urandom(NODE_BYTES)}),
        }
        with suppress(ConflictError):
            await self.keys.put(_name(tenant), f"{number:06d}", value, expected_version=0)

    async def _unwrap(self, tenant: str, item: StoreItem) -> DataKey:
        key_id = item.value["key_id"]
        wrapped = base64.b64decode(item.value["wrapped"], validate=True)
        context = _make_context(tenant, int(item.key), key_id)
        secrets = await self._ask(wrapped, context, bytes.fromhex(key_id))
        content, size = base64.b64decode(item.value["nodes"]), _NODE_NUMBER_BYTES + NODE_BYTES
        parts = (content[at : at + size] for at in range(0, len(content), size))
        nodes = {int.from_bytes(it[:_NODE_NUMBER_BYTES]): it[_NODE_NUMBER_BYTES:] for it in parts}
        own, digests = secrets[:KEY_BYTES], secrets[KEY_BYTES:]
        return DataKey(bytes.fromhex(key_id), tenant, own, digests, nodes)

    async def _wrap(self, secrets: bytes, context: str, key_id: bytes) -> bytes:
        """Return a data key wrapped, once the ring has unwrapped it: there is no other copy."""
        wrapped = await ask_ring(self.ring, "wrap", secrets, context)
        if not isinstance(wrapped, bytes):
            raise EncryptionError("wrap of the key ring did not return bytes; nothing was sealed")
        await self._ask(wrapped, context, key_id)
        return wrapped

    async def _ask(self, blob: bytes, context: str, key_id: bytes) -> bytes:
        secrets = await ask_ring(self.ring, "unwrap", blob, context)
        if not isinstance(secrets, bytes) or _compute_key_id(secrets) != key_id:
            raise EncryptionError(
                "the key ring returned something else than the data key that it had wrapped; "
                "nothing was sealed with it"
            )
        return secrets

    async def list_keys(self) -> list[KeyStatus]:
        """Return the data keys of all tenants."""
        return [
            KeyStatus(tenant, int(item.key), item.value["key_id"], _get_ring_key(item))
            async for tenant, item in self._iterate()
        ]

    async def _iterate(self) -> AsyncIterator[tuple[str, StoreItem]]:
        offset = 0
        while names := await self.keys.list_namespaces((_ROOT,), limit=_PAGE, offset=offset):
            offset += len(names)
            for name in names:
                tenant = name[-1][1:]
                for item in await self._list(tenant):
                    yield tenant, item

    async def rewrap(self) -> int:
        """Wrap all data keys with the current key of the ring; return how many were others.

        Data is neither read nor written. It may be repeated, and run beside writers.
        """
        count, current = 0, getattr(self.ring, "current", None)
        async for tenant, item in self._iterate():
            if current is not None and _get_ring_key(item) == current:
                continue
            key_id, number = item.value["key_id"], int(item.key)
            context = _make_context(tenant, number, key_id)
            own = bytes.fromhex(key_id)
            secrets = await self._ask(base64.b64decode(item.value["wrapped"]), context, own)
            wrapped = await self._wrap(secrets, context, own)
            value = {**item.value, "wrapped": base64.b64encode(wrapped).decode()}
            with suppress(ConflictError):  # destroyed, or wrapped by another process, meanwhile
                await self.keys.put(_name(tenant), item.key, value, expected_version=item.version)
                count += 1
        return count

    async def add_key(self, tenant: str) -> str:
        """Create the next data key of a tenant, which seals from now on; return its id.

        Other processes use it within ``REFRESH_SECONDS``. What is stored keeps its key.
        """
        keys = await self.load(tenant)
        secrets = os.urandom(KEY_BYTES) + keys.current.digest_secret
        await self._create(tenant, keys.number + 1, secrets)
        return (await self.load(tenant)).current.key_id.hex()

    async def retire(self, tenant: str, key_ids: Collection[str]) -> list[str]:
        """Remove data keys of a tenant that seal nothing; return the ids of those removed.

        None is removed until other processes have learned of the newest key, which stays. The
        caller has counted the values of all storages that share this store of data keys.
        """
        items = await self._list(tenant)
        gone = [it for it in items[:-1] if it.value["key_id"] in key_ids]
        if gone:
            newest, name = items[-1], _name(tenant)
            with suppress(ConflictError):  # a put shows the store's time
                await self.keys.put(name, newest.key, newest.value, expected_version=newest.version)
            found = await self.keys.get_item(name, newest.key)
            age = (found.updated_at - found.created_at).total_seconds() if found else 0.0
            if age <= 2 * REFRESH_SECONDS:
                return []
        for item in gone:
            await self.keys.delete(_name(tenant), item.key)
        await self.load(tenant)
        return [it.value["key_id"] for it in gone]

    async def destroy(self, tenant: str) -> Receipt:
        """Destroy the data keys of a tenant: nothing that they sealed can be read any more.

        That is also true of backups, write-ahead logs and replicas of the data, but not of a backup
        of the store of data keys. Other processes forget the keys within ``REFRESH_SECONDS``.
        """
        items = await self._list(tenant)
        key_ids = [it.value["key_id"] for it in items]
        removals = [Remove(namespace=_name(tenant), key=it.key) for it in items]
        receipt = await self._apply_with_receipt(tenant, key_ids, removals)
        for key_id in key_ids:
            LOADED.pop(bytes.fromhex(key_id), None)
        self._known.pop(tenant, None)
        return receipt

    async def _apply_with_receipt(
        self, tenant: str, key_ids: list[str], changes: Sequence[Change]
    ) -> Receipt:
        """Change data keys and store the receipt, in one transaction."""
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        kept, name = {"key_ids": key_ids, "destroyed_at": at}, f"{at} {os.urandom(4).hex()}"
        await self.keys.apply([*changes, _make_put(_name(tenant, _RECEIPTS), name, kept)])
        return Receipt(tenant, key_ids, at)

    async def list_receipts(self, tenant: str, after: str = "") -> list[Receipt]:
        """Return the receipts of a tenant, the oldest first, from behind a time."""
        found = []
        while page := await self.keys.list(_name(tenant, _RECEIPTS), after=after or None):
            found += [Receipt(tenant, **it.value) for it in page]
            after = page[-1].key
        return found

    async def find_destruction(self, tenant: str) -> str | None:
        """Return when data keys of a tenant were destroyed last, if there is a receipt."""
        times = [
            receipt.destroyed_at
            for receipt in await self.list_receipts(tenant)
            if any(len(it) == 2 * KEY_ID_BYTES for it in receipt.key_ids)  # not of a subject
        ]
        return max(times, default=None)

    async def note(self, tenant: str, subjects: Collection[Subject]) -> None:
        """Store which subjects are about to be forgotten, before their data is deleted.

        If the process is killed then, the next ``destroy_noted`` destroys their keys.
        """
        if subjects:
            value = [list(it) for it in sorted(subjects)]
            await self.keys.put(_name(tenant, _NOTED), os.urandom(8).hex(), value)

    async def destroy_noted(
        self,
        tenant: str,
        find_gone: Callable[[set[Subject]], Awaitable[set[Subject] | None]],
        own: Collection[Subject],
    ) -> None:
        """Destroy the keys of noted subjects of which nothing is stored; keep a receipt.

        ``find_gone`` returns those of the subjects of a note, whose keys are destroyed; ``None``:
        the note is of others. Subjects that are stored stay noted, unless they are the caller's
        ``own``: another process may be about to delete them.
        """
        left: dict[str, set[Subject]] = {}
        gone: set[Subject] = set()
        for item in await self.keys.list(_name(tenant, _NOTED), limit=_MOST_KEYS):
            noted: set[Subject] = {tuple(it) for it in item.value}
            found = await find_gone(noted)
            if found is not None:
                left[item.key] = noted - found - set(own)
                gone |= found
        while gone and not await self._puncture(tenant, sorted(gone)):
            pass  # another process has changed a data key meanwhile
        for key, rest in left.items():
            await self.note(tenant, rest)
            await self.keys.delete(_name(tenant, _NOTED), key)

    async def _puncture(self, tenant: str, subjects: list[Subject]) -> bool:
        """Destroy the keys of subjects, unless another process changes a data key meanwhile."""
        changes, key_ids = list[Change](), list[str]()
        for item in await self._list(tenant):
            key = await self._unwrap(tenant, item)
            nodes, leaves = key.puncture(subjects)
            value = {**item.value, "nodes": _pack_nodes(nodes)}
            changes.append(_make_put(_name(tenant), item.key, value, item.version))
            key_ids += [(key.key_id + it).hex() for it in leaves]
        if changes:
            try:
                await self._apply_with_receipt(tenant, key_ids, changes)
            except ConflictError:
                return False
            await self.load(tenant)
        return True


def _make_put(name: Namespace, key: str, value: Any, version: int | None = None) -> Put:
    return Put(namespace=name, key=key, json=encode(value), metadata={}, expected_version=version)


_NODE_NUMBER_BYTES: Final = LEAF_BYTES + 1


def _compute_key_id(secrets: bytes) -> bytes:
    """Return the id of a data key, which says whether a key ring has returned the right one."""
    return hmac.digest(secrets, b"locus-store key id", "sha256")[:KEY_ID_BYTES]


def _pack_nodes(nodes: Mapping[int, bytes]) -> str:
    packed = (number.to_bytes(_NODE_NUMBER_BYTES) + node for number, node in nodes.items())
    return base64.b64encode(b"".join(packed)).decode()


def _name(tenant: str, root: str = _ROOT) -> tuple[str, str]:
    """Return the namespace of what is kept of a tenant; a segment is never empty."""
    return root, f"={tenant}"


def _make_context(tenant: str, number: int, key_id: str) -> str:
    return json.dumps(["locus-store data key", tenant, number, key_id])


def _get_ring_key(item: StoreItem) -> str:
    name, end, _ = base64.b64decode(item.value["wrapped"]).partition(b"\0")
    return name.decode(errors="replace") if end else ""


def make_encryption(option: Any) -> Encryption:
    """Return the encryption of an option: an ``Encryption``, or a text for ``Encryption.read``.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(option, Encryption):
        return option
    if isinstance(option, str):
        return Encryption.read(option)
    raise InvalidArgumentError(
        f"encryption must be an Encryption, or the name of a file, not {type(option).__name__}"
    )
