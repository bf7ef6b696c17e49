"""A backend that encrypts: what it hands to the storage is sealed, what it returns is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from locus_store.backend import ErasesThreads, FullBackend, JoinsTransactions, StorageBackend
from locus_store.encryption.contracts import LoadsKeys, open_statuses
from locus_store.encryption.values import CLEAR, Sealing, count_keys, require_answer
from locus_store.errors import LocusStoreError, UnsupportedError
from locus_store.runtime.loops import run_off_loop
from locus_store.runtime.observe import report_unswept, skip_too_large
from locus_store.types import (
    ArchivedThread,
    ArchivedWrite,
    Head,
    Hit,
    LineContents,
    PendingWrite,
    Save,
    Stored,
    Version,
    VersionsWanted,
    Written,
)
from locus_store.types.arguments import check_limit, check_text
from locus_store.types.facts import Fact
from locus_store.values.filters import check_wanted, has_value, is_found
from locus_store.values.sealing import (
    CLIENT_FORMAT,
    THREAD,
    Subject,
    UnknownKeyError,
    make_thread_subject,
)
from locus_store.values.text import query_words
from locus_store.versions import PutWrites, erasing, generate_checkpoint_id
from locus_store.versions.archives import make_copy
from locus_store.versions.erasing import FindThreads
from locus_store.versions.reading import iterate_ids
from locus_store.versions.sharding import HasShards
from locus_store.versions.threads import load_archive
from locus_store.wire.records import IdNeededError

if TYPE_CHECKING:
    from locus_store.versions.sizes import StatusesWanted, ThreadStatus


def _make_fetch(name: str) -> Any:
    """Return a method that opens what the storage's method of this name returns."""

    async def fetch(self: EncryptedBackend, thread_id: str, **which: Any) -> Stored | None:
        answer: Stored | None = await getattr(super(EncryptedBackend, self), name)(
            thread_id, **which
        )
        _require_named(answer.version if answer else None, thread_id, **which)
        return answer and await self._unseal(lambda it: it.open_stored(answer))

    return fetch


class EncryptedBackend(LoadsKeys, FullBackend):
    """The part of a backend that encrypts; ``derive_class`` puts it before another class.

    The storage keeps sealed records, keyed digests, and metadata whose content is sealed. Rules
    that rewrite records (deletion, retention, segments) open and seal them in this process.
    """

    has_keyed_digests = True

    def is_digest_of(self, version: Version, digest: bytes) -> bool:
        keys = self.encryption.get_loaded(self._tenant_name)
        return self._make_sealing(keys).is_digest_of(version, digest)

    async def open(self) -> None:
        await super().open()
        await self.get_sealing()

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), Fact("encryption", repr(self.encryption))]

    async def commit(self, save: Save) -> Written:
        return await super().commit((await self.get_sealing()).seal_save(save))

    fetch, fetch_head = map(_make_fetch, ("fetch", "fetch_head"))

    async def history(self, thread_id: str, **which: Any) -> list[Version]:
        found = await super().history(thread_id, **which)
        for version in found:
            _require_named(version, thread_id, namespace=which.get("namespace", ""))
        return await self._unseal(lambda it: type(found)(map(it.open_version, found)))

    async def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        asked = [(key, await self._make_stored(key, value)) for key, value in wanted.metadata]
        shown = tuple((key, it[0]) for key, it in asked if it)
        found = await super().newest(replace(wanted, metadata=shown), limit)
        return await self._unseal(lambda it: [it.open_version(one) for one in found])

    async def heads(self, limit: int = 100) -> list[Head]:
        found = await super().heads(limit)
        return await self._unseal(lambda it: [_open_head(it, head) for head in found])

    async def records(self, thread_id: str, **which: Any) -> list[tuple[int, int, bytes]]:
        found = await super().records(thread_id, **which)
        return await self._unseal(lambda it: it.open_records(found))

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        found = await super().contents(versions)
        lines = {it.mark.line: (it.thread_id, it.namespace) for it in versions}
        require_answer(all(one.line in lines for one in found))
        return await self._unseal(
            lambda it: [_open_contents(it, one, *lines[one.line]) for one in found]
        )

    async def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        """See ``ListsStatuses``; what sealed metadata says is compared in this process."""
        clear, named = self.encryption.clear, criteria.metadata
        shown = replace(
            criteria,
            user_id=criteria.user_id if "user_id" in clear else None,
            kind=criteria.kind if "source" in clear else None,
            metadata=named if named and named[0].partition(".")[0] in clear else None,
            text=None,
        )
        found: list[ThreadStatus] = []
        while len(found) < criteria.limit:
            page = await super().find_statuses(shown)  # type: ignore[misc]  # of the storage
            opened = await self._unseal(partial(open_statuses, statuses=page))
            if criteria.text is not None:
                words, own = query_words(criteria.text), replace(criteria, text=None)
                opened = [it for it in opened if own.takes(it)]
                opened = [it.with_hit(await self._find_in(it.thread_id, words)) for it in opened]
            found += filter(criteria.takes, opened)
            if len(page) < shown.limit:
                break
            shown = replace(shown, place=page[-1].place)
        return found[: criteria.limit]

    async def store_writes(self, put: PutWrites) -> bool:
        sealing, place = await self.get_sealing(), (put.thread_id, put.namespace, put.checkpoint_id)
        sealed = [sealing.seal_write(*place, it) for it in put.writes]
        return await super().store_writes(replace(put, writes=sealed))

    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        found = await super().writes_of(thread_id, checkpoint_ids, namespace=namespace)
        return await self._unseal(lambda it: _open_writes(it, thread_id, namespace, found))

    async def list_writes(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> list[ArchivedWrite]:
        found = await super().list_writes(thread_id, namespace, checkpoint_id)

        def open_with(sealing: Sealing) -> list[ArchivedWrite]:
            opened = partial(sealing.open_write, thread_id, namespace)
            names = {it.checkpoint_id for it in found}
            require_answer(checkpoint_id is None or names <= {checkpoint_id})
            return [replace(it, write=opened(it.checkpoint_id, it.write)) for it in found]

        return await self._unseal(open_with)

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        found = await super().read_thread(thread_id)
        require_answer(found is None or found.thread_id == thread_id)
        return await self._unseal(lambda it: found and it.open_thread(found))

    async def restore(self, thread: ArchivedThread) -> None:
        await super().restore((await self.get_sealing()).seal_thread(thread))

    async def rewrite_thread(
        self, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
    ) -> bool:
        """See ``StoresThreads``; what is in clear is refused where encryption is required."""
        sealing = await self.get_sealing()
        return await super().rewrite_thread(
            thread_id, lambda it: sealing.seal_thread(change(sealing.open_thread(it)))
        )

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        """Copy a thread by way of this process: what is sealed names its thread."""
        check_text("dest_thread_id", dest_thread_id)
        found = await self.read_thread(source_thread_id)
        if found is None or not await self.has_thread(source_thread_id):
            return False
        await self.restore(make_copy(found, dest_thread_id))
        return True

    async def _erase(self, find: FindThreads, key: str, value: Any) -> dict[str, int]:
        """Remove threads and items, and destroy their keys."""
        noted = set[Subject]()

        async def find_and_note() -> list[str]:
            found = await find()
            new = set(map(make_thread_subject, found)) - noted
            await self.encryption.note(self._tenant_name, new)
            noted.update(new)
            return found

        try:
            counts = await super()._erase(find_and_note, key, value)
        finally:
            await self.encryption.destroy_noted(self._tenant_name, self._find_gone, noted)
        return counts if "store" in counts else counts | await forget_items(self, key, value)

    async def _find_gone(self, subjects: set[Subject]) -> set[Subject] | None:
        """Return the threads of a note that are not stored; ``None``: they are not threads."""
        if any(kind != THREAD for kind, *_ in subjects):
            return None
        read = super().read_thread
        return {it for it in subjects if await read(it[1]) is None}

    async def count_keys(self) -> Counter[str]:
        """Return how many stored values each data key has sealed, and how many are in clear."""
        found = Counter[str]()
        async for thread_id in iterate_ids(self.scan):
            found += count_keys(await super().read_thread(thread_id))
        return found

    async def has_sealed(self) -> bool:
        if self.sealed_format == CLIENT_FORMAT:  # clients of one service may have keys of their own
            return False
        read = super(LoadsKeys, self).read_thread
        try:
            some = [await read(it) for it in await self.scan(10)]
        except UnknownKeyError:
            return True
        return any(count_keys(it).keys() - {CLEAR} for it in some)

    async def reencrypt(self, after: str | None = None) -> AsyncIterator[str]:
        """Seal the threads behind an id again with the current data key; yield each that was done.

        What is in clear is encrypted, or refused where encryption is required. A thread is changed
        in one transaction, beside writers, and one whose values have the current key is left alone:
        a run that was ended may be repeated.
        The digests of a thread that was in clear change, so that a writer who loaded it before
        gets a ``ConflictError``.
        """
        async for thread_id in iterate_ids(self.scan, after=after):
            current = (await self.get_sealing()).keys.current.key_id.hex()
            if count_keys(await super().read_thread(thread_id)).keys() - {current}:
                await self.rewrite_thread(thread_id, lambda it: it)
                yield thread_id

    async def _make_stored(self, key: str, value: Any) -> tuple[Any] | None:
        """Return what the storage finds a value of metadata by; ``None``: it does not."""
        chosen = self.encryption
        if key.partition(".")[0] in chosen.clear:
            return (value,)
        values = value if isinstance(value, list | tuple) else [value]
        is_plain = not any(isinstance(it, dict | list | tuple) for it in values)
        if key in chosen.hashed and "." not in key and is_plain and chosen.required:
            return ((await self.get_sealing()).hash_value(key, value),)
        return None

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        value = check_wanted(key, value)
        check_limit(limit)
        if stored := await self._make_stored(key, value):
            found = await super().query(key, *stored, limit)
            return await self._unseal(lambda it: [_open_head(it, head) for head in found])
        heads = [
            (record.created_at, record.sequence, thread.thread_id, record)
            async for thread in _iterate_threads(self)
            for line in thread.lines
            if not line.namespace and line.head is not None
            for record in line.records
            if record.sequence >= line.floor or record.sequence == line.head
            if is_found(record.metadata, record.labels, key, value)
        ]
        heads.sort(key=lambda it: it[:2], reverse=True)
        return [
            Head(thread_id=of, updated_at=at, checkpoint_id=r.checkpoint_id, metadata=r.metadata)
            for at, _, of, r in heads[:limit]
        ]

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        value = check_wanted(key, value)
        if stored := await self._make_stored(key, value):
            return await super().tagged(key, *stored)
        return [
            (thread.thread_id, line.namespace, record.checkpoint_id)
            async for thread in _iterate_threads(self)
            for line in thread.lines
            for record in line.records
            if has_value(record.metadata, key, value)
        ]

    async def find_threads(self, key: str, value: Any, *, user_id: str | None = None) -> list[str]:
        if stored := await self._make_stored(key, value):
            find = super().find_threads  # the metadata of threads is in clear
            found = await find(key, value, user_id=user_id)
            found += [] if stored == (value,) else await find(key, *stored)
            return list(dict.fromkeys(found))
        return await erasing.find_threads(self, key, value, user_id=user_id)

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        words = query_words(query)
        found = [await self._find_in(it, words) async for it in iterate_ids(self.scan)]
        hits = filter(None, found)
        return sorted(hits, key=lambda it: (it.score, it.updated_at), reverse=True)[:limit]

    async def _find_in(self, thread_id: str, words: list[str]) -> Hit | None:
        if (thread := await self.read_thread(thread_id)) is None:
            return None
        size = sum(len(it.payload) for line in thread.lines for it in line.records)
        return await run_off_loop(partial(self._search, thread_id, thread, words), size)

    @skip_too_large
    def _search(self, thread_id: str, source: ArchivedThread, words: list[str]) -> Hit | None:
        thread = load_archive(source)
        history = thread.find_history("")
        return thread.search(history, words, self.max_state_bytes) if history else None


class VersionsBackend(EncryptedBackend):
    """The same, of a storage that reads versions without their states."""

    async def version(self, thread_id: str, *which: Any, **more: Any) -> Version | None:
        found = await super().version(thread_id, *which, **more)
        _require_named(found, thread_id, *which, **more)
        return await self._unseal(lambda it: found and it.open_version(found))


class JoiningEncryptedBackend(VersionsBackend, JoinsTransactions):
    """The same, of a SQL database."""

    def join_set(self) -> None:
        """Do nothing: ``open`` refuses one shard of several, as keys are judged by all of them."""

    async def commit_on(self, save: Save, connection: object) -> Written:
        return await super().commit_on((await self.get_sealing()).seal_save(save), connection)

    async def _forget_items(self, key: str, value: Any) -> int:
        return (await forget_items(self, key, value))["store"]


class OpenedShard(JoiningEncryptedBackend):
    """The same, of a shard that its set reads for a moment; the set has the store and the keys."""

    async def _find_gone(self, _: set[Subject]) -> set[Subject] | None:
        return None

    async def _forget_items(self, _: str, __: Any) -> int:
        return 0


class ShardedEncryptedBackend(VersionsBackend):
    """The same, of a set of shards, which are not encrypted by themselves: moves need no keys."""

    def _see(self, shard: StorageBackend) -> Any:
        """Return a shard that encrypts: threads may be out of their place."""
        opened: Any = copy(shard)
        opened.__class__ = derive_class(type(shard), OpenedShard)
        opened.encryption = self.encryption
        return opened

    async def count_keys(self) -> Counter[str]:
        await cast("Any", self).complete_moves()  # before a key is removed that seals their threads
        return await super().count_keys()


async def _iterate_threads(backend: FullBackend) -> AsyncIterator[ArchivedThread]:
    async for thread_id in iterate_ids(backend.scan):
        if (found := await backend.read_thread(thread_id)) is not None:
            yield found


async def forget_items(backend: EncryptedBackend, key: str, value: Any) -> dict[str, int]:
    """Remove the items beside a backend with ``value`` at ``key``, and their keys; count them."""
    storage = import_module("locus_store.open").Storage(backend)
    service = getattr(backend, "service", None)  # a service may have no store
    if not (service.description if service else storage).has_store:
        return {}
    return {"store": await storage.store().forget(lambda it: has_value(it.metadata, key, value))}


class ClientBackend(VersionsBackend):
    """The same, of a client whose service does not have the keys.

    The service stores sealed records, decides conflicts by keyed digests, and joins the records of
    removed versions with the next one; this class replaces those by a change of its own.
    """

    sealed_format = CLIENT_FORMAT
    compares_digests = True

    async def open(self) -> None:
        await super().open()
        await self._require_service()

    async def _require_service(self) -> None:
        """Refuse a service with keys of its own, or that speaks the Locus SDK's wire only."""
        service = self.service  # type: ignore[attr-defined]  # of HTTPBackend
        if await service.get_sdk_backend() is not None:
            raise UnsupportedError(
                f"{service.where} keeps whole states in clear: it has no records"
            )
        if service.description.has_keyed_digests:
            raise UnsupportedError(
                f"{service.where} encrypts with its own keys: leave encryption= out, or give its "
                "storage none"
            )

    async def commit(self, save: Save) -> Written:
        await self._require_service()
        try:
            return await super().commit(save)
        except IdNeededError:  # a side branch replaces no version
            return await super().commit(replace(save, checkpoint_id=generate_checkpoint_id()))

    async def store_writes(self, put: PutWrites) -> bool:
        """Store whole writes: a service cannot expand changes when it replaces their version."""
        if any(it.basis is not None for it in put.writes):
            return False
        return await super().store_writes(put)

    async def remove(
        self, thread_id: str, checkpoint_ids: Sequence[str] | None = None, **which: Any
    ) -> int:
        removed = await super().remove(thread_id, checkpoint_ids, **which)
        if removed and checkpoint_ids is not None:
            await self._squash(thread_id)
        return removed

    async def prune(self, thread_id: str) -> int:
        if removed := await super().prune(thread_id):
            await self._squash(thread_id)
        return removed

    async def _squash(self, thread_id: str) -> None:
        """Replace the records that the service has joined, so that nothing of removed ones stays.

        The versions are removed already: a failure is reported, and the next deletion in the
        thread, or ``reencrypt``, does it.
        """
        sealing = await self.get_sealing()

        def change(thread: ArchivedThread) -> ArchivedThread:
            return replace(thread, lines=[sealing.replace_joined(it) for it in thread.lines])

        try:
            await super(EncryptedBackend, self).rewrite_thread(thread_id, change)
        except LocusStoreError as exc:
            report_unswept("a deletion", thread_id, exc)

    replace_thread = FullBackend.replace_thread  # the request would show the service the contents
    forget_user = ErasesThreads.forget_user  # the service knows no owners, of items either
    forget_where = ErasesThreads.forget_where


@cache
def derive_class(
    kind: type[StorageBackend], base: type[EncryptedBackend] | None = None
) -> type[EncryptedBackend]:
    """Return the class of a backend that encrypts."""
    if base is None:
        base = JoiningEncryptedBackend if issubclass(kind, JoinsTransactions) else EncryptedBackend
        base = ShardedEncryptedBackend if issubclass(kind, HasShards) else base
        base = ClientBackend if kind.__module__ == "locus_store.backends.http.backend" else base
    about = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    made: type[EncryptedBackend] = type(kind.__name__, (base, kind), about)
    return made


def _require_named(
    version: Version | None,
    thread_id: str,
    checkpoint_id: str | None = None,
    namespace: str = "",
    **_: object,
) -> None:
    """Refuse another version than the one that was asked for."""
    if version is not None:
        names = version.thread_id, version.namespace, version.checkpoint_id
        require_answer(names == (thread_id, namespace, checkpoint_id or version.checkpoint_id))


def _open_head(sealing: Sealing, head: Head) -> Head:
    place = head.thread_id, "", head.checkpoint_id
    return replace(head, metadata=sealing.open_metadata(head.metadata, *place))


def _open_writes(
    sealing: Sealing, thread_id: str, namespace: str, writes: dict[str, list[PendingWrite]]
) -> dict[str, list[PendingWrite]]:
    return {
        name: [sealing.open_write(thread_id, namespace, name, it) for it in some]
        for name, some in writes.items()
    }


def _open_contents(
    sealing: Sealing, contents: LineContents, thread_id: str, namespace: str
) -> LineContents:
    writes = _open_writes(sealing, thread_id, namespace, contents.writes)
    return contents._replace(records=sealing.open_records(contents.records), writes=writes)
