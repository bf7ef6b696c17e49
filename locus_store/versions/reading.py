"""Reading of lines for loads, lists and searches, and the newest versions of many lines."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from locus_store.errors import EncryptionError, IntegrityError, NotFoundError
from locus_store.runtime.loops import run_off_loop
from locus_store.types import ArchivedThread, Kept, Mark, Removed, Stored, Version, VersionsWanted
from locus_store.values import frames
from locus_store.values.encoding import TooLargeError
from locus_store.values.filters import has_value
from locus_store.values.msgpack import convert_to_json
from locus_store.values.sealing import is_sealed, open_records
from locus_store.versions.lines import Line, Lines, Record, Records, find_head, is_visible


async def iterate_ids(
    list_page: Callable[..., Any], *criteria: Any, after: str | None = None, page: int = 100
) -> AsyncIterator[str]:
    """Yield the ids that ``scan`` or ``list_threads`` lists behind one, ``page`` read at once."""
    while found := await list_page(page, *criteria, after=after):
        for thread_id in found:
            yield thread_id
        after = found[-1]


def target(records: Records, line: Line, checkpoint_id: str | None) -> Record | None:
    """Return the record to load: the named one, or the head."""
    if checkpoint_id is None:
        return find_head(records, line)
    found = records.named(line, checkpoint_id)
    return found if found and is_visible(line, found.sequence) else None


def find_basis(
    records: Records, line: Line, record: Record, mark: Mark | None, store: str
) -> Mark | None:
    """Return ``mark`` if the record's chain has that version, up to the record itself.

    Args:
        records: Of the line.
        line: The line.
        record: The version to load.
        mark: A version that the caller has.
        store: The identity of the database.
    """
    if mark is None or (mark.store, mark.line) != (store, line.line):
        return None
    if mark.sequence > record.sequence:
        return None
    found = records.record(line, mark.sequence)
    is_it = found is not None and (found.digest, found.chain) == (mark.digest, record.chain)
    return mark if is_it else None


def keep_state(
    stored_version: Stored, tree: frames.DigestTree, state: dict[str, Any] | None = None
) -> Kept:
    """Return a stored version with its digest tree, and the state if it is decoded."""
    version, head, writes = stored_version.version, stored_version.head, stored_version.writes
    return Kept(version=version, snapshot=tree, head=head, writes=writes, state=state)


Matches: TypeAlias = Callable[[Version, bytes], bool]
"""Compares the digest of a state with a version's; see ``StorageBackend.is_digest_of``."""


def has_digest(version: Version, digest: bytes) -> bool:
    """Return whether a digest is that of the version, as it is stored in clear."""
    return version.mark.digest == digest


def decode_state(
    stored_version: Stored,
    max_bytes: int,
    basis: frames.DigestTree | None = None,
    matches: Matches = has_digest,
) -> tuple[dict[str, Any], frames.DigestTree]:
    """Return the state that stored bytes give, checked against its digest, and its digest tree.

    Args:
        stored_version: The version.
        max_bytes: The largest state, as compact JSON.
        basis: The digest tree of ``stored_version.basis``.
        matches: See ``StorageBackend.is_digest_of``.

    Raises:
        IntegrityError: The stored bytes do not give the state that was saved, or one that is
            larger than ``max_bytes``.
    """
    version = stored_version.version
    with name_version_in_errors(version):
        if basis is None:
            state = frames.fold(stored_version.payloads, max_bytes)
            tree = frames.build_digest_tree(state)
        else:
            state, edits = frames.fold_onto(basis, stored_version.payloads, max_bytes)
            tree = frames.build_digest_tree(state, basis, edits)
        _require_same(version, tree, matches)
        return state, tree


def decode_state_alone(
    stored_version: Stored, max_bytes: int, matches: Matches = has_digest
) -> tuple[dict[str, Any], int]:
    """Return the state of stored bytes as JSON, checked against its digest, and its size.

    Nothing of it is kept for a later save, which takes a third of the memory of ``decode_state``.

    Raises:
        IntegrityError: See ``decode_state``.
    """
    with name_version_in_errors(stored_version.version):
        state = frames.fold(stored_version.payloads, max_bytes)
        tree = _require_digest(stored_version.version, state, matches)
        return convert_to_json(state) if tree.has_msgpack else state, tree.state_bytes


@contextmanager
def name_version_in_errors(version: Version) -> Iterator[None]:
    """Name the version in an error of its stored bytes."""
    try:
        yield
    except IntegrityError as exc:
        raise _add_place(_name(version), exc) from exc


_REMEDY = "restore the database from a backup, or load another version"


def _add_place(where: str, exc: IntegrityError) -> IntegrityError:
    if isinstance(exc, TooLargeError):
        return exc.with_place(where)
    if isinstance(exc, EncryptionError):
        return type(exc)(f"{where}: {exc}")
    return IntegrityError(f"{where}: {exc}; {_REMEDY}")


def _name(version: Version) -> str:
    return f"thread {version.thread_id!r}, checkpoint {version.checkpoint_id!r}"


def _require_digest(version: Version, state: dict[str, Any], matches: Matches) -> frames.DigestTree:
    """Return a state's digest tree without lists, checked against the version's digest."""
    tree = frames.build_digest_tree(state, keeps=False)
    _require_same(version, tree, matches)
    return tree


def _require_same(version: Version, tree: frames.DigestTree, matches: Matches) -> None:
    if not matches(version, tree.digest):
        raise IntegrityError("the stored bytes do not give the state that was saved")


def replay(
    records: Sequence[tuple[int, int, bytes]],
    versions: Iterable[Version],
    max_bytes: int,
    *,
    packed: bool = False,
    matches: Matches = has_digest,
) -> Iterator[tuple[Version, frames.Folder]]:
    """Yield the states of versions of one line, in one pass.

    Args:
        records: What ``StoresThreads.records`` gave for them.
        versions: The versions, in any order.
        max_bytes: The largest state that is folded.
        packed: MessagePack stays bytes, and becomes no JSON.
        matches: See ``StorageBackend.is_digest_of``.

    Yields:
        Each, ascending, with the folder of its state. The folder continues with the next one of
        its chain, and is the caller's after the newest; its ``log`` lists the operations behind
        the first one, or since it was cleared, and its ``watch`` may be set.

    Raises:
        IntegrityError: A record is damaged, or the newest of them in a chain is not the state that
            was saved.
    """
    missing = {it.mark.sequence: it for it in versions}
    newest = {chain: sequence for sequence, chain, _ in records if sequence in missing}
    folders: dict[int, frames.Folder] = {}
    for sequence, chain, payload in records:
        if sequence > newest.get(chain, 0):
            continue
        folder = folders.setdefault(chain, frames.Folder(max_bytes, in_json=not packed))
        version = missing.pop(sequence, None)
        try:
            folder.apply(payload)
            if sequence == newest[chain]:
                del folders[chain]
                if version is not None:
                    _require_digest(version, folder.build_exact(), matches)
        except IntegrityError as exc:
            where = _name(version) if version else f"version {sequence}"
            raise _add_place(where, exc) from exc
        if version is not None:
            if folder.log is None:
                folder.log = []
            yield version, folder
    for version in missing.values():
        raise IntegrityError(f"{_name(version)} does not exist any more: it was removed meanwhile")


def iterate_visible_texts(
    line: Line,
    records: Iterable[tuple[int, int, bytes]],
    max_bytes: int,
    hidden: dict[int, frames.Folder] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield the text that each visible version adds, for a search.

    Args:
        line: The line.
        records: All its (sequence, chain, payload), ascending.
        max_bytes: The largest state that is folded.
        hidden: Carries over what was folded of hidden versions, where the records come in several
            calls; an empty dict at first.

    Yields:
        (sequence, text); sealed versions have none. Where ``keep_last`` hid what a chain begins
        with, its first visible version brings the whole of its state.
    """
    hidden = {} if hidden is None else hidden
    for sequence, chain, payload in records:
        if is_sealed(payload):
            continue
        if not is_visible(line, sequence):
            hidden.setdefault(chain, frames.Folder(max_bytes)).apply(payload)
        elif folder := hidden.pop(chain, None):
            folder.apply(payload)
            yield sequence, frames.collect_text(folder.get_state())
        else:
            yield sequence, frames.extract_text(payload, max_bytes)


def select_records(
    records: Iterable[tuple[int, int, bytes]], first: int, last: int
) -> list[tuple[int, int, bytes]]:
    """Return the records that ``StoresThreads.records`` returns, ascending."""
    until = [it for it in records if it[0] <= last]
    chains = {chain for sequence, chain, _ in until if sequence >= first}
    return [it for it in until if it[1] in chains]


def cursor(records: Records, line: Line, thread_id: str, checkpoint_id: str) -> int:
    """Return the sequence of the version at which a list continues.

    Raises:
        NotFoundError: There is no such version.
    """
    found = records.named(line, checkpoint_id)
    if found is None:
        raise NotFoundError(
            f"thread {thread_id!r} has no checkpoint {checkpoint_id!r} to list below; begin again "
            "without a cursor"
        )
    return found.sequence


def read_state_at(lines: Lines, line: Line, record: Record) -> dict[str, Any]:
    """Return the state of a version."""
    rows = lines.payloads(line, record.chain, upto=record.sequence)
    opened = open_records(it for _, it in rows)
    return frames.fold((it.payload for it in opened), lines.max_state_bytes)


T = TypeVar("T")


class ThreadStorage(Protocol):
    """The methods of a backend that rules over whole threads call."""

    @property
    def max_state_bytes(self) -> int:
        """The largest state that is read or stored."""

    @property
    def compares_digests(self) -> bool:
        """``is_digest_of`` compares."""

    def is_digest_of(self, version: Version, digest: bytes) -> bool:
        """Return whether a state of this digest is that of a version."""

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        """Return what the states of a range of sequences are made of."""

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        """Return a version without its state."""

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        """Return thread ids, ascending."""

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        """Return all that is stored of a thread."""

    async def restore(self, thread: ArchivedThread) -> None:
        """Store a thread that was found whole."""

    async def remove_thread(self, thread_id: str) -> Removed:
        """Remove a thread with all it owns."""


async def read_states(
    backend: ThreadStorage, versions: Sequence[Version], make: Callable[[Version, frames.Folder], T]
) -> list[T]:
    """Return the results of ``make`` for versions of one line; each chain is read once.

    See ``StoresThreads.read_states`` of ``locus_store.backend`` for arguments and errors.
    """
    if not versions:
        return []
    sequences = [it.mark.sequence for it in versions]
    records = await backend.records(
        versions[0].thread_id,
        namespace=versions[0].namespace,
        first=min(sequences),
        last=max(sequences),
    )
    return await read_states_from(backend, versions, {versions[0].mark.line: records}, make)


async def read_states_from(
    backend: ThreadStorage,
    versions: Sequence[Version],
    records: Mapping[int, Sequence[tuple[int, int, bytes]]],
    make: Callable[[Version, frames.Folder], T],
    *,
    packed: bool = False,
) -> list[T]:
    """Return what ``read_states`` does for versions of any lines, from their records by line.

    With ``packed``, MessagePack in their states stays bytes.
    """
    found = {(line, sequence) for line, some in records.items() for sequence, _, _ in some}
    wanted: defaultdict[int, list[Version]] = defaultdict(list)
    for version in versions:
        place = version.mark.line, version.mark.sequence
        if place in found or await _is_there(backend, version):
            wanted[version.mark.line].append(version)

    def made() -> list[T]:
        max_bytes, matches = backend.max_state_bytes, backend.is_digest_of
        read = partial(replay, max_bytes=max_bytes, packed=packed, matches=matches)
        states = {
            (line, version.mark.sequence): make(version, folder)
            for line, some in wanted.items()
            for version, folder in read(records.get(line, ()), some)
        }
        return [states[at] for it in versions if (at := (it.mark.line, it.mark.sequence)) in states]

    size = len(versions) * sum(len(it) for some in records.values() for *_, it in some)
    try:
        states = await run_off_loop(made, size)
    except IntegrityError as exc:
        changed = [it.thread_id for it in versions if not await _is_there(backend, it)]
        if not changed:
            raise
        raise _make_changed_error(changed[0]) from exc
    for some in [] if backend.compares_digests else wanted.values():
        if not await _is_there(backend, some[0]):
            raise _make_changed_error(some[0].thread_id)
    return states


def _make_changed_error(thread_id: str) -> NotFoundError:
    return NotFoundError(f"thread {thread_id!r} was changed while it was listed; list it again")


async def _is_there(backend: ThreadStorage, version: Version) -> bool:
    """Return whether the version still has this name."""
    found = await backend.version(
        version.thread_id, version.checkpoint_id, namespace=version.namespace
    )
    return found is not None and found.mark == version.mark


Place: TypeAlias = "tuple[datetime, int, int]"
"""The time, line and sequence of a version, which order the list."""


def is_plain(query: VersionsWanted) -> bool:
    """Return whether any version of the thread, or of all threads, is wanted, and none later."""
    return query == VersionsWanted(thread_id=query.thread_id)


class Newest(Generic[T]):
    """The newest of the versions that are added.

    Args:
        query: The versions that are listed.
        limit: At most this many are kept.
    """

    def __init__(self, query: VersionsWanted, limit: int) -> None:
        after = query.after
        self._wanted = query
        self._limit = limit
        self._end = (after.created_at, after.mark.line, after.mark.sequence) if after else None
        self._heap: list[tuple[Place, T]] = []

    def may_take(self, at: datetime) -> bool:
        """Return whether a version of this time, or an older one, may be among the newest."""
        if len(self._heap) < self._limit:
            return True
        return bool(self._heap) and self._heap[0][0][0] <= at

    def takes(self, checkpoint_id: str, metadata: Mapping[str, Any]) -> bool:
        """Return whether a version of this name and metadata is wanted."""
        wanted = self._wanted
        return wanted.checkpoint_id in {None, checkpoint_id} and all(
            has_value(metadata, key, value) for key, value in wanted.metadata
        )

    def add(self, place: Place, version: T) -> None:
        """Add a version; each once."""
        if self._end is not None and place >= self._end:
            return
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (place, version))
        elif self._heap and place > self._heap[0][0]:
            heapq.heapreplace(self._heap, (place, version))

    def get_newest(self) -> list[tuple[Place, T]]:
        """Return the newest versions in order."""
        return sorted(self._heap, key=lambda it: it[0], reverse=True)
