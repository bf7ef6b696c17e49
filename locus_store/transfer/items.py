"""Items of a store: copied with their versions, times and embeddings, or as lines of a file."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, BinaryIO, Final, Self, TypeAlias

import orjson

from locus_store.backend import StorageBackend
from locus_store.encryption.contracts import EncryptedStore
from locus_store.errors import (
    ConflictError,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    SerializationError,
    UnsupportedError,
)
from locus_store.open import Storage
from locus_store.runtime.progress import expect_steps
from locus_store.runtime.stepping import run_together
from locus_store.store import BaseStore
from locus_store.transfer.counts import OF_ONE, Tally
from locus_store.types import ArchivedThread
from locus_store.types.arguments import check_tenant
from locus_store.types.items import (
    Name,
    Put,
    PutItem,
    StoreItem,
    as_given,
    check_name,
    check_stamp,
    get_names,
    iterate_items,
)
from locus_store.values import vectors
from locus_store.values.encoding import digest, encode
from locus_store.values.sealing import UnknownKeyError
from locus_store.versions.archives import select

FORMAT: Final = 1
"""Version of the form of a line; another one is refused."""

SEALED: Final = "the file is sealed: open the storage with the encryption= of the exported one"
IN_CLEAR: Final = (
    "the file has threads or items in clear, and encryption is required here: accept them with "
    "--clear (in_clear=True)"
)

_ITEM = ("namespace", "key", "value", "metadata", "version", "ttl_seconds")
_ITEM_TIMES = ("created_at", "updated_at", "expires_at")

_MOST_ITEMS: Final = 200
_MOST_BYTES: Final = 1 << 20
"""Bounds of a batch of items that are put at once."""


@dataclass(frozen=True, slots=True)
class ArchivedItem:
    """A stored item with its embeddings."""

    item: StoreItem
    vectors: Sequence[bytes]
    is_sealed: bool = False
    """It is as a storage that encrypts has it."""

    @property
    def name(self) -> Name:
        """The namespace and the key."""
        return self.item.namespace, self.item.key

    @property
    def dimension(self) -> int | None:
        """The number of dimensions of its embeddings."""
        return len(self.vectors[0]) // vectors.FLOAT_BYTES if self.vectors else None


_Read: TypeAlias = "Callable[[Sequence[Name]], Awaitable[list[StoreItem | None]]]"

Parsed: TypeAlias = "tuple[str | None, ArchivedThread | ArchivedItem, IntegrityError | None]"
"""A thread or item of a file, with its tenant, if that is named, and its damage, if any."""


async def find_store(backend: StorageBackend, dimension: int | None = None) -> BaseStore | None:
    """Return the store beside a backend, open and with its embeddings; ``None``: it has none.

    Args:
        backend: The tenant's.
        dimension: That of embeddings to be put, if there are any.
    """
    try:
        store = Storage(backend).store()
        await store.open()
    except UnsupportedError:
        return None
    if dimension not in {None, store.stored_dimension}:
        store = Storage(backend).store(dimension=dimension)
        await store.open()
    store.dimension = store.stored_dimension or dimension
    return store


async def read_items(store: BaseStore) -> AsyncIterator[list[ArchivedItem]]:
    """Yield a store's live items as they are stored, with their embeddings, in batches.

    Args:
        store: Opened with its embeddings.
    """
    batch, size = list[StoreItem](), 0
    read: _Read = store.read
    if is_sealed := isinstance(store, EncryptedStore):
        items, read = store.iterate_stored(), store.read_stored
    else:
        items = iterate_items(store.namespaces, store.page)
    async for item in items:
        batch.append(item)
        size += len(encode(item.value))
        if len(batch) >= _MOST_ITEMS or size >= _MOST_BYTES:
            yield [ArchivedItem(*it, is_sealed) async for it in _add_embeddings(store, batch, read)]
            batch, size = [], 0
    yield [ArchivedItem(*it, is_sealed) async for it in _add_embeddings(store, batch, read)]


async def _add_embeddings(
    store: BaseStore, items: list[StoreItem], read: _Read
) -> AsyncIterator[tuple[StoreItem, Sequence[bytes]]]:
    """Yield items with their embeddings; one that was changed meanwhile is read again."""
    while items and store.dimension is not None:
        found = await run_together(store.vectors_of(it.namespace, it.key) for it in items)
        again = await read([(it.namespace, it.key) for it in items])
        for item, kept, embeddings in zip(items, again, found, strict=True):
            if kept == item:
                yield item, embeddings
        pairs = zip(items, again, strict=True)
        items = [kept for item, kept in pairs if kept is not None and kept != item]
    for item in items:
        yield item, ()


async def _open_item(store: BaseStore, entry: ArchivedItem) -> ArchivedItem:
    """Return an item in clear; refuse one that was changed, or whose key is not here."""
    if not isinstance(store, EncryptedStore):
        return entry
    return replace(entry, item=(await store.open_all([entry.item]))[0], is_sealed=False)


async def copy_items(source: StorageBackend, target: StorageBackend, tally: Tally) -> None:
    """Copy the items of the store beside a backend to that beside another one.

    Raises:
        UnsupportedError: The target has no store.
    """
    store = await _find_source(source)
    if store is None:
        return
    there = await find_store(target, store.dimension)
    if there is None:
        raise make_storeless_error(target)
    async for batch in read_items(store):
        opened = list[ArchivedItem]()
        for entry in batch:
            try:
                opened.append(await _open_item(store, entry))
            except IntegrityError as exc:
                tally.refuse(entry.name, exc, None)
        await put_items(there, opened, tally)


async def _find_source(backend: StorageBackend) -> BaseStore | None:
    """Return the store whose items are read; ``None``: there are none."""
    try:
        store = await find_store(backend)
        return store if store and await store.list_namespaces(limit=1) else None
    except LocusStoreError as exc:  # such as a role without rights to the store
        raise type(exc)(f"the items of the store cannot be read: {exc}; {_LEAVE_OUT}") from exc


_LEAVE_OUT: Final = "leave them out with --no-items (with_items=False)"


def make_storeless_error(backend: StorageBackend) -> UnsupportedError:
    """Return the error of a target without a store."""
    return UnsupportedError(
        f"there is no store beside {type(backend).__name__}, and items to put: {_LEAVE_OUT}"
    )


async def put_items(
    store: BaseStore, batch: Sequence[ArchivedItem], tally: Tally, tenant: str | None = None
) -> None:
    """Put items that are not there, all at once or else each by itself; count them."""
    puts = list[Put]()
    for entry in expect_steps(batch):
        try:
            puts.append(_make_put(store, entry))
        except (InvalidArgumentError, SerializationError) as exc:
            tally.refuse(entry.name, exc, tenant)
    names, done = get_names(puts), set[Name]()
    there: list[StoreItem | None] = [None] * len(puts)
    with suppress(*OF_ONE):  # of one item, which the others do not share
        there = await store.read(names)
        new = [put for put, kept in zip(puts, there, strict=True) if kept is None]
        if new and len(set(names)) == len(names):
            await store.apply(new)
            done, there = set(get_names(new)), await store.read(names)
    await run_together(
        tally.add(put.name, _put(store, put, kept, is_new=put.name in done), tenant=tenant)
        for put, kept in zip(puts, there, strict=True)
    )


def _make_put(store: BaseStore, entry: ArchivedItem) -> Put:
    item = as_given(entry.item)
    checked = store.checked(PutItem(*entry.name, item.value, item.metadata, item.ttl_seconds, 0))
    return replace(checked, vectors=tuple(entry.vectors), stamp=item.stamp)


async def _put(store: BaseStore, put: Put, item: StoreItem | None, *, is_new: bool) -> bool | None:
    """Put an item unless it is there; return whether it was new; ``None``: its time was over."""
    if item is None and not is_new:
        with suppress(ConflictError):
            await store.apply([put])
            is_new = True
        [item] = await store.read([put.name])
    if item is None and put.ttl_seconds is not None:
        return None
    if item is not None and encode(item.value) == put.json and item.metadata == put.metadata:
        found = await store.vectors_of(*put.name) if put.vectors else []
        if (*found,) == put.vectors:
            return is_new
    if is_new:
        raise IntegrityError("it was changed while it was copied; copy it again")
    raise ConflictError("the target has another item of this name; delete one of the two")


async def export_items(
    backend: StorageBackend, out: BinaryIO, *, names_tenant: bool = False, in_clear: bool = False
) -> int:
    """Write the items of the store beside a backend to ``out``; return how many.

    For the arguments and errors see ``export_threads``; ``make_last_line`` ends the file.
    """
    store = await _find_source(backend)
    if store is None:
        return 0
    require_sealing(backend, in_clear=in_clear)
    head = {"kind": "item", "format": FORMAT} | ({"tenant": backend.tenant} if names_tenant else {})
    count = 0
    async for batch in read_items(store):
        entries = [await _open_item(store, it) for it in batch] if in_clear else batch
        out.writelines(_encode_item(it, head) for it in entries)
        count += len(batch)
    return count


def _encode_item(entry: ArchivedItem, head: dict[str, Any]) -> bytes:
    line = {**head, "is_sealed": entry.is_sealed}
    line |= select(entry.item, _ITEM)
    times = select(entry.item, _ITEM_TIMES)
    line |= {name: moment and moment.isoformat() for name, moment in times.items()}
    line["embeddings"] = [base64.b64encode(it).decode() for it in entry.vectors]
    return encode_line({**line, "digest": _compute_digest(line)})


def _compute_digest(line: dict[str, Any]) -> str:
    return digest(encode(line)).hex()


def parse_item(line: dict[str, Any]) -> Parsed:
    """Return the item of a line, with its tenant and damage."""
    original = line.pop("digest")
    damage = None
    if _compute_digest(line) != original:
        damage = IntegrityError("it is not what was exported; nothing was written")
    if line["format"] != FORMAT:
        raise make_format_error(line["format"])
    times = {it: parse_time(line[it]) for it in _ITEM_TIMES}
    given: dict[str, Any] = {it: line[it] for it in _ITEM} | times
    item = StoreItem(**given | {"namespace": tuple(line["namespace"])})
    check_name(item.namespace, item.key)
    check_stamp(item.stamp, item.ttl_seconds)
    embeddings = [base64.b64decode(it, validate=True) for it in line["embeddings"]]
    if embeddings:
        vectors.check_dimension(len(embeddings[0]) // vectors.FLOAT_BYTES)
    for one in embeddings:  # of the same length, with finite numbers
        vectors.pack(vectors.unpack(one), len(embeddings[0]) // vectors.FLOAT_BYTES, "ip")
    tenant = line.get("tenant")
    if tenant is not None:
        check_tenant(tenant)
    return tenant, ArchivedItem(item, embeddings, is_sealed=line["is_sealed"]), damage


class Putter:
    """Puts the items of a file in batches; use it with ``async with``.

    Args:
        tally: Learns of each item.
        in_clear: See ``import_threads``.
    """

    def __init__(self, tally: Tally, *, in_clear: bool) -> None:
        self._tally, self._in_clear = tally, in_clear
        self._stores: dict[str | None, BaseStore] = {}
        self._place: tuple[BaseStore, str | None] | None = None
        self._batch: list[ArchivedItem] = []
        self._size = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, LocusStoreError):
            await self._flush()

    async def add(
        self,
        target: StorageBackend,
        entry: ArchivedItem,
        tenant: str | None,
        damage: IntegrityError | None,
    ) -> None:
        """Put an item into the store beside a backend, at the latest at the end of the block.

        Args:
            target: The backend of the tenant.
            entry: The item.
            tenant: The tenant that the file names.
            damage: Of the item's line, which is then counted only.

        Raises:
            EncryptionError: It may not be read or put here.
            UnsupportedError: There is no store.
        """
        if damage is not None:
            self._tally.refuse(entry.name, damage, tenant)
            return
        store = await self._find(target, entry, tenant)
        if entry.is_sealed:
            if not isinstance(store, EncryptedStore):
                raise EncryptionError(SEALED)
            try:
                if not await store.has_keys():  # a file that is not trusted creates none
                    raise UnknownKeyError("it is sealed with a key that is not here")
                entry = await _open_item(store, entry)
            except IntegrityError as exc:
                self._tally.refuse(entry.name, exc, tenant)
                return
        elif isinstance(store, EncryptedStore) and store.encryption.required and not self._in_clear:
            raise EncryptionError(IN_CLEAR)
        if self._place != (store, tenant):
            await self._flush()
            self._place = store, tenant
        self._batch.append(entry)
        self._size += len(encode(entry.item.value))
        if len(self._batch) >= _MOST_ITEMS or self._size >= _MOST_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        """Put the items that wait."""
        batch, self._batch, self._size = self._batch, [], 0
        if self._place and batch:
            store, tenant = self._place
            await put_items(store, batch, self._tally, tenant)

    async def _find(
        self, target: StorageBackend, entry: ArchivedItem, tenant: str | None
    ) -> BaseStore:
        store = self._stores.get(tenant)
        if store is None or entry.dimension not in {None, store.dimension}:
            store = await find_store(target, entry.dimension)
            if store is None:
                raise make_storeless_error(target)
            self._stores[tenant] = store
        return store


def require_sealing(backend: StorageBackend, *, in_clear: bool) -> None:
    """Refuse to export in clear from a service with keys of its own."""
    if not (in_clear or backend.compares_digests):
        raise UnsupportedError(
            "the service encrypts with its own keys, so that an export here is in clear: export "
            "where the keys are, or ask for clear text with --clear (in_clear=True)"
        )


def make_format_error(form: object) -> ValueError:
    """Return the error of a line of another form."""
    return ValueError(f"of format {form!r}; import it with the release that wrote it")


def encode_line(value: dict[str, Any]) -> bytes:
    """Return a line of a file."""
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line."""
    found = orjson.loads(line)
    if not isinstance(found, dict):
        raise TypeError("no JSON object")
    return found


def make_last_line(threads: int, items: int = 0) -> bytes:
    """Return the line that ends a file; an import of a file without it reports that it is cut."""
    return encode_line({"kind": "complete", "threads": threads, "items": items})


def parse_time(text: str | None) -> datetime | None:
    """Return a time of a line."""
    return None if text is None else datetime.fromisoformat(text)
