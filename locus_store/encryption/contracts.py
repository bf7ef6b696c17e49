"""Message logs and stores that encrypt, and the data keys of a storage's own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from locus_store.encryption.keys import DESTROYED, Encryption, TenantKeys
from locus_store.encryption.values import (
    CLEAR,
    Sealing,
    count_item_key,
    make_item_subject,
    require_answer,
)
from locus_store.errors import ConflictError, IntegrityError
from locus_store.messages import BaseMessageLog
from locus_store.store import BaseStore
from locus_store.types.items import Change, Name, Namespace, Put, StoreItem, Wanted, iterate_items
from locus_store.types.logs import LogsWanted
from locus_store.types.messages import LogChange, LogChanged, LogEdit, LogRead, LogWanted
from locus_store.values.encoding import encode
from locus_store.values.filters import Filter
from locus_store.values.sealing import (
    CLIENT_FORMAT,
    FORMAT,
    THREAD,
    ForgottenError,
    Subject,
    UnknownKeyError,
)

if TYPE_CHECKING:
    from locus_store.versions.sizes import ThreadStatus

T = TypeVar("T")

_PAGE: Final = 1000
_EVERYTHING: Final = 2**30


class Encrypts:
    """The part of a backend, a message log or a store that encrypts."""

    encryption: Encryption
    sealed_format: ClassVar[int] = FORMAT

    @property
    def _tenant_name(self) -> str:
        """The tenant; empty where the storage has none."""
        owner: Any = getattr(self, "backend", self)
        return getattr(owner, "tenant", None) or ""

    def _make_sealing(self, keys: TenantKeys) -> Sealing:
        of = self.encryption
        return Sealing(keys, of.clear, of.hashed, of.required, self.sealed_format)

    async def get_sealing(self) -> Sealing:
        """Return the sealing of this object's tenant, with its keys loaded."""
        keys = await self.encryption.get_or_load(self._tenant_name, self.has_sealed)
        return self._make_sealing(keys)

    async def has_keys(self) -> bool:
        """Return whether this object's tenant has data keys; ``get_sealing`` creates one."""
        return await self.encryption.has_keys(self._tenant_name)

    async def has_sealed(self) -> bool:
        """Return whether the storage has sealed values, as far as a few of its threads tell."""
        owner: Any = getattr(self, "shards", None) or getattr(self, "backend", None)
        return await owner.has_sealed() if isinstance(owner, Encrypts) else False

    async def _unseal(self, open_with: Callable[[Sealing], T]) -> T:
        """Return what is opened with the tenant's keys."""

        async def open_it(sealing: Sealing) -> T:
            return open_with(sealing)

        return await self._with_keys(open_it)

    async def _with_keys(self, ask: Callable[[Sealing], Awaitable[T]]) -> T:
        """Return the answer of a call that opens; a key that is new here is loaded.

        An error says that the keys of the tenant were destroyed, if they were.
        """
        tenant = self._tenant_name
        try:
            try:
                return await ask(await self.get_sealing())
            except UnknownKeyError:
                keys = await self.encryption.load(tenant, self.has_sealed)
            return await ask(self._make_sealing(keys))
        except IntegrityError as exc:
            is_unread = type(exc) in {IntegrityError, UnknownKeyError}
            if is_unread and (at := await self.encryption.find_destruction(tenant)):
                told = f"the data keys of tenant {tenant!r} were {DESTROYED} {at}"
                exc.args = (f"{exc}; {told}: remove what they sealed, see docs/encryption.md",)
            raise


class LoadsKeys(Encrypts):
    """A storage whose rules open records: where they rewrite them, or divide a segment."""


def _load_keys(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method of the storage that has the data keys loaded."""

    async def method(self: LoadsKeys, *args: Any, **kwargs: Any) -> Any:
        ask = getattr(super(LoadsKeys, self), name)
        return await self._with_keys(lambda _: ask(*args, **kwargs))

    return method


for _name in (
    *("fetch", "fetch_head", "records", "contents", "read_thread"),
    *("commit", "store_writes", "remove", "prune", "rewrite_thread", "vacuum_report"),
):
    setattr(LoadsKeys, _name, _load_keys(_name))


class EncryptedMessageLog(Encrypts, BaseMessageLog):
    """The part of a message log that encrypts; see ``derive_class``."""

    async def change(self, change: LogChange) -> LogChanged:
        sealing = await self.get_sealing()

        def seal(edit: LogEdit) -> Any:
            puts = [sealing.seal_put(edit.thread_id, edit.namespace, it) for it in edit.puts]
            return replace(edit, puts=puts)

        sealed = replace(seal(change), also=[seal(it) for it in change.also])
        revision, removed = await super().change(sealed)
        if removed is None:
            return LogChanged(revision)
        gone = removed
        opened = await self._unseal(lambda it: it.open_message(change.thread_id, gone))
        return LogChanged(revision, opened)

    async def look(self, wanted: LogWanted) -> LogRead | None:
        """Read as the storage does; a search opens all messages that meet its other conditions."""
        if not wanted.reads_content:
            found = await super().look(wanted)
            if found is None:
                return None
            name = found.info.thread_id, found.info.namespace
            require_answer(name == (wanted.thread_id, wanted.namespace))
            return await self._unseal(lambda it: _open_read(it, found))
        whole = replace(
            wanted, needle=None, metadata_filter=None, limit=None, offset=0, newest=False
        )
        every = await self.look(whole)
        if every is None:
            return None
        matching = (it for it in every.messages if wanted.takes(it, self.max_state_bytes))
        return every._replace(messages=wanted.cut_page(matching))

    async def look_at_contents(self, request: LogWanted) -> list[Any]:
        return await BaseMessageLog.look_at_contents(self, request)

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        found = await super().find_heads(wanted)
        return await self._unseal(lambda it: [_open_read(it, one) for one in found])


def _open_read(sealing: Sealing, read: LogRead) -> LogRead:
    thread_id = read.info.thread_id
    return read._replace(messages=[sealing.open_message(thread_id, it) for it in read.messages])


class _Ended(Put):
    """An item that expired long ago, without content, in the place of one; stored in clear."""

    __slots__ = ()


class EncryptedStore(Encrypts, BaseStore):
    """The part of a store that encrypts; embeddings stay in clear. See ``derive_class``."""

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        return await super().apply(await self._seal(changes))

    async def apply_on(self, changes: Sequence[Change], connection: object) -> list[int]:
        return await super().apply_on(await self._seal(changes), connection)

    async def _seal(self, changes: Sequence[Change]) -> list[Change]:
        sealing = await self.get_sealing()
        return [sealing.seal_item(it) if type(it) is Put else it for it in changes]

    async def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        found = await super().read(names)
        for name, item in zip(names, found, strict=True):
            require_answer(item is None or (item.namespace, item.key) == name)
        return await self._unseal(lambda it: [one and it.open_item(one) for one in found])

    async def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        found = await super().page(namespace, limit, after)
        require_answer(all(it.namespace == namespace for it in found))
        return await self._unseal(lambda it: [it.open_item(one) for one in found])

    async def recent(self, wanted: Wanted) -> list[StoreItem]:
        """Read the items of the prefix, the last updated first, until enough of them match."""
        found, at, end = list[StoreItem](), 0, wanted.offset + wanted.limit
        asked = _ask_for_all(wanted)
        while len(found) < end:
            page = await super().recent(replace(asked, offset=at))
            opened = await self.open_all(page)
            found += [it for it in opened if wanted.takes(it.value, it.metadata)]
            at += len(page)
            if len(page) < asked.limit:
                break
        return found[wanted.offset : end]

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        asked = replace(_ask_for_all(wanted), limit=_EVERYTHING)
        opened = await self.open_all(await super().nearest(asked, vector, threshold))
        found = [it for it in opened if wanted.takes(it.value, it.metadata)]
        return found[wanted.offset : wanted.offset + wanted.limit]

    def iterate_stored(self) -> AsyncIterator[StoreItem]:
        """Yield the items as they are stored."""
        return iterate_items(self.namespaces, super().page)

    async def read_stored(self, names: Sequence[Name]) -> list[StoreItem | None]:
        """Return items as they are stored."""
        return await super().read(names)

    async def count_keys(self) -> Counter[str]:
        """Return how many items are sealed with each data key, and how many are in clear."""
        return Counter([count_item_key(it) async for it in self.iterate_stored()])

    async def has_sealed(self) -> bool:
        """See ``Encrypts``; the first item tells."""
        if self.sealed_format != CLIENT_FORMAT:
            async for stored in self.iterate_stored():
                return count_item_key(stored) != CLEAR or await super().has_sealed()
        return await super().has_sealed()

    async def reencrypt(self) -> AsyncIterator[Name]:
        """Seal items again with the current data key; yield the name of each that was done.

        One in clear is encrypted, or refused where encryption is required. An item keeps its
        version, times and embeddings. One that is changed meanwhile is sealed by its writer.
        """
        await self.open()
        self.dimension = self.stored_dimension or self.dimension
        async for stored in self.iterate_stored():
            sealing = await self.get_sealing()
            if count_item_key(stored) == sealing.keys.current.key_id.hex():
                continue
            item, name = sealing.open_item(stored), stored.namespace
            embeddings = await self.vectors_of(name, stored.key) if self.dimension else []
            put = Put(
                namespace=name,
                key=stored.key,
                json=encode(item.value),
                metadata=item.metadata,
                ttl_seconds=stored.ttl_seconds,
                expected_version=stored.version,
                vectors=tuple(embeddings),
                stamp=stored.stamp,
                is_resealed=True,
            )
            with suppress(ConflictError):
                await self.apply([put])
                yield name, stored.key

    async def forget_namespace(self, namespace: Namespace) -> int:
        """Remove the items of a namespace and below it, as ``forget`` does."""
        return await self.forget(lambda it: it.namespace[: len(namespace)] == namespace)

    async def forget(self, condition: Callable[[StoreItem], bool]) -> int:
        """Remove items, and destroy the keys that seal no other items; return how many items.

        Reads all items. Those whose key was destroyed before are removed, too. One that is put
        meanwhile stays.
        """
        await self.expire()
        tenant, wanted = self._tenant_name, list[StoreItem]()
        subjects = set[Subject]()
        async for stored in self.iterate_stored():
            item = await self._open_unless_forgotten(stored)
            if item is None or condition(item):
                wanted.append(stored)
                subjects |= {make_item_subject(item)} if item else set()
        await self.encryption.note(tenant, subjects)
        removed = sum([await self._end(it) for it in wanted])
        await self.expire()
        await self.encryption.destroy_noted(tenant, self._find_gone, subjects)
        return removed

    async def _end(self, item: StoreItem) -> bool:
        """Let an item expire, without its content; return ``False`` if it was put meanwhile."""
        ended = _Ended(
            namespace=item.namespace,
            key=item.key,
            json=b"null",
            metadata={},
            ttl_seconds=1,
            expected_version=item.version,
            stamp=replace(item.stamp, expires_at=item.created_at),
            is_resealed=True,
        )
        with suppress(ConflictError):
            return bool(await self.apply([ended]))
        return False

    async def _open_unless_forgotten(self, item: StoreItem) -> StoreItem | None:
        try:
            return (await self.open_all([item]))[0]
        except ForgottenError:
            return None

    async def _find_gone(self, subjects: set[Subject]) -> set[Subject] | None:
        """Return the subjects of a note that have no items; ``None``: they have threads."""
        if any(kind == THREAD for kind, *_ in subjects):
            return None
        opened = [await self._open_unless_forgotten(it) async for it in self.iterate_stored()]
        return subjects - {make_item_subject(it) for it in opened if it is not None}

    async def open_all(self, items: list[StoreItem]) -> list[StoreItem]:
        return await self._unseal(lambda it: [it.open_item(one) for one in items])


def _ask_for_all(request: Wanted) -> Wanted:
    """Return criteria of all items of a prefix: the storage knows neither values nor metadata."""
    every = Filter({})
    return replace(request, filter=every, metadata_filter=every, words=(), limit=_PAGE, offset=0)


def open_statuses(sealing: Sealing, statuses: Sequence[ThreadStatus]) -> list[ThreadStatus]:
    """Return the statuses of threads with their contents."""
    found = []
    for status in statuses:
        open_message = partial(sealing.open_message, status.thread_id)
        opened: dict[str, Any] = {"message": _open_unless_damaged(open_message, status.message)}
        if status.metadata is not None:
            place = status.thread_id, "", status.checkpoint_id or ""
            fields = sealing.open_fields(status.metadata, status.labels, *place)
            opened["metadata"], opened["labels"] = fields
            opener = sealing.make_opener(continues=True)
            record = _open_unless_damaged(opener.open_joined, status.record)
            is_its = (
                not opener.digest or sealing.bind(opener.digest, place, *fields) == status.digest
            )
            opened["record"] = record if is_its else None
        found.append(replace(status, **opened))
    return found


def _open_unless_damaged(open_value: Callable[[Any], T], value: Any) -> T | None:
    """Return an opened value; ``None`` if it is damaged, as its own page says."""
    try:
        return None if value is None else open_value(value)
    except UnknownKeyError:
        raise
    except IntegrityError:
        return None


@cache
def derive_class(kind: type[Any]) -> type[Any]:
    """Return the class of a message log or a store that encrypts."""
    base = EncryptedStore if issubclass(kind, BaseStore) else EncryptedMessageLog
    is_client = kind.__module__.startswith("locus_store.backends.http.")
    own = {"sealed_format": CLIENT_FORMAT} if is_client else {}
    return type(
        kind.__name__, (base, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__, **own}
    )
