"""Records of the Locus SDK 3.0.1 for a thread: its checkpoints in their order, the head last.

Nothing is read here. ``group_rows`` undoes the keys of the SDK's ``StorageBackendAdapter``, which
puts ``thread:checkpoint``, ``thread:latest`` (a copy of the newest) and ``thread:_checkpoints`` (a
list of ids) into one table. A row's value shows its writer.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final, Self

from locus_store.errors import IntegrityError, LocusStoreError
from locus_store.values.encoding import MAX_INT, MIN_INT

logger = logging.getLogger("locus_store")

LATEST: Final = "latest"
INDEX: Final = ":_checkpoints"
ADDED: Final = ("_checkpoint_id", "_checkpoint_timestamp", "_metadata")
"""Keys that the adapter puts into a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One checkpoint, and the place it is read from."""

    checkpoint_id: str
    created_at: datetime
    key: Any
    """The source's own."""

    where: str
    """The row or file, for a person."""


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of a checkpoint."""

    state: dict[str, Any]
    metadata: dict[str, Any]


@dataclass(slots=True)
class FoundThread:
    """A thread of the source."""

    entries: list[Entry] = field(default_factory=list)
    """Entries in order, the head last."""

    problem: LocusStoreError | None = None
    """The reason why the thread cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One row of a table of keys, without its state."""

    key: str
    saved_as: str | None
    """The checkpoint id that the adapter wrote into it; ``None``: not the adapter's."""

    saved_at: str | None
    fingerprint: str
    """Equal where the data is equal."""

    is_index: bool
    column_id: str | None
    updated_at: datetime

    @classmethod
    def from_data(
        cls, key: str, data: Mapping[str, Any], *, column_id: str | None, updated_at: datetime
    ) -> Self:
        saved_as = data.get("_checkpoint_id")
        return cls(
            key=key,
            saved_as=saved_as if isinstance(saved_as, str) else None,
            saved_at=data.get("_checkpoint_timestamp"),
            fingerprint=compute_fingerprint(data),
            is_index=key.endswith(INDEX) and isinstance(data.get("checkpoints"), list),
            column_id=column_id,
            updated_at=updated_at,
        )


def group_rows(
    rows: Iterable[KeyRow], problems: Mapping[str, LocusStoreError]
) -> dict[str, FoundThread]:
    """Return the threads that the rows make, by thread id.

    A thread without ``latest`` was deleted: its remaining rows are not imported.

    Args:
        rows: Those that can be read.
        problems: The errors of the others, by key; each stops every thread that may own the key.
    """
    found: dict[str, FoundThread] = {}
    own: defaultdict[str, list[KeyRow]] = defaultdict(list)
    latest: dict[str, KeyRow] = {}
    foreign: dict[str, LocusStoreError] = {}
    for row in rows:
        if row.is_index:
            continue
        if row.saved_as is None:
            found[row.key] = FoundThread([_make_plain_entry(row)])
        elif row.key.endswith(f":{row.saved_as}"):
            thread_id = row.key.removesuffix(f":{row.saved_as}")
            own[thread_id].append(row)
            if row.saved_as == LATEST:
                latest[thread_id] = row
        elif row.key.endswith(f":{LATEST}"):
            latest[row.key.removesuffix(f":{LATEST}")] = row
        else:
            foreign[row.key] = IntegrityError(
                f"row {row.key!r} says that it is checkpoint {row.saved_as!r}, which its key does"
                " not end in"
            )
    for thread_id, newest in latest.items():
        if thread_id in found:
            foreign[thread_id] = IntegrityError(
                f"row {thread_id!r} was not written by the adapter that wrote {newest.key!r}"
            )
        found[thread_id] = _make_thread(own[thread_id], newest)
    _tell_deleted(own, latest.keys())
    for key, problem in {**foreign, **problems}.items():
        owners = [it for it in found if key == it or key.startswith(f"{it}:")]
        found |= dict.fromkeys(owners or [key], FoundThread(problem=problem))
    return found


def _tell_deleted(threads: Mapping[str, list[KeyRow]], latest: Collection[str]) -> None:
    """Warn of the rows of threads without a latest one."""
    if rests := [len(it) for name, it in threads.items() if name not in latest]:
        logger.warning(
            "import: %d rows of %d deleted threads, which the Locus SDK left behind, are not"
            " imported",
            sum(rests),
            len(rests),
        )


def _make_plain_entry(row: KeyRow) -> Entry:
    """Return the entry of a row that a backend of the SDK wrote without the adapter."""
    return Entry(
        checkpoint_id=row.column_id or LATEST,
        created_at=row.updated_at,
        key=row.key,
        where=f"row {row.key!r}",
    )


def _make_thread(rows: list[KeyRow], latest: KeyRow) -> FoundThread:
    """Return a thread's checkpoints by time; the one that the SDK loads comes last.

    ``latest`` is a checkpoint of its own where it is not the copy of one that is there.
    """
    try:
        entries = {row.key: _make_entry(row) for row in rows}
        whole = latest.saved_as, latest.fingerprint
        head = next((it.key for it in rows if (it.saved_as, it.fingerprint) == whole), None)
        if head is None:
            head = latest.key
            entries[head] = replace(_make_entry(latest), checkpoint_id=LATEST)
    except IntegrityError as exc:
        return FoundThread(problem=exc)
    return FoundThread(
        sorted(entries.values(), key=lambda it: (it.key == head, it.created_at, it.key))
    )


def _make_entry(row: KeyRow) -> Entry:
    where = f"row {row.key!r}"
    return Entry(
        checkpoint_id=row.saved_as or LATEST,
        created_at=parse_time(row.saved_at, where),
        key=row.key,
        where=where,
    )


def parse_time(text: object, where: str) -> datetime:
    """Return a time as the SDK writes it; without a zone it is UTC.

    Raises:
        IntegrityError: It is not a time.
    """
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError as exc:
        raise IntegrityError(f"{where} has no time: {str(text)[:40]!r}") from exc
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def unwrap(data: Any, metadata: Any, where: str) -> Content:
    """Return the checked state and metadata of a row of keys, the adapter's or not."""
    if not isinstance(data, dict) or ADDED[0] not in data:
        return make_content(data, metadata, where)
    state = {name: it for name, it in data.items() if name not in ADDED}
    return make_content(state, data.get(ADDED[2]), where)


def make_content(state: Any, metadata: Any, where: str) -> Content:
    """Return a state with its metadata; refuse what is none."""
    metadata = metadata or {}
    if not isinstance(state, dict) or not isinstance(metadata, dict):
        raise IntegrityError(f"{where} has a state or metadata that is not a JSON object")
    return Content(state, metadata)


def make_changed_error(entry: Entry) -> IntegrityError:
    """Return the error for a checkpoint that is not what it was when the threads were listed."""
    return IntegrityError(f"{entry.where} changed meanwhile; stop the agents, and run again")


def find_repeated(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the checkpoint ids that more than one entry has."""
    counts = Counter(it.checkpoint_id for it in entries)
    yield from (it for it, count in counts.items() if count > 1)


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode(), parse_int=_parse_integer
        )
    except (ValueError, RecursionError) as exc:
        raise IntegrityError(f"{where} is not JSON, or damaged: {exc}") from exc


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the object of a JSON text.

    Raises:
        IntegrityError: It is damaged, or not an object.
    """
    data = parse_json(text, where)
    if not isinstance(data, dict):
        raise IntegrityError(f"{where} is not a JSON object")
    return data


def _parse_integer(text: str) -> int | float:
    """Return an integer, or the float it stands for: JSONB writes 1e22 with all its digits."""
    value = int(text)
    if MIN_INT <= value <= MAX_INT:
        return value
    try:
        nearest = float(text)
    except OverflowError:
        return value
    return nearest if nearest < float("inf") and Decimal(repr(nearest)) == value else value


def compute_fingerprint(value: Mapping[str, Any]) -> str:
    """Return a string that is equal for equal JSON; unrelated to the stored digests.

    Raises:
        IntegrityError: It is nested too deep.
    """
    try:
        return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    except RecursionError as exc:
        raise IntegrityError("is nested too deep") from exc
