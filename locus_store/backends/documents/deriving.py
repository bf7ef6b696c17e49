"""Documents that a storage derives from the versions of a thread, beside its head.

A head never depends on them: its note names the versions whose documents are not known to be
written, and the next write of the thread writes those again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from locus_store.backends.documents.bundles import Bundle
from locus_store.backends.documents.segments import SegmentedHistory, find_runs
from locus_store.versions.histories import History, Row
from locus_store.versions.threads import Thread

Place: TypeAlias = "tuple[str, int]"
"""A namespace and a sequence."""


class Derived(NamedTuple):
    """A version that a document is derived from."""

    namespace: str
    line: int
    row: Row
    is_new: bool
    """No document of the line has had its sequence."""

    is_changed: bool
    """It is not the version of the stored head."""


@dataclass(slots=True)
class Changes:
    """Changes of the derived documents of a thread."""

    thread_id: str
    revision: int
    """Of the head that makes the changes."""

    written: dict[Place, Derived]
    """Versions whose documents are missing or differ; a put takes out those that it has written."""

    removed: list[tuple[int, int]]
    """Lines and sequences of versions that were removed."""


def derive_changes(
    old: Thread | None,
    thread: Thread,
    tail: Bundle,
    places: Iterable[Place],
    *,
    revision: int,
    adds_only: bool,
) -> Changes:
    """Return what a write of a thread changes.

    Args:
        old: The thread as it is stored.
        thread: The thread to write.
        tail: What no segment holds.
        places: Versions whose documents are not known to be written.
        revision: Of the head to write.
        adds_only: No version was removed.
    """
    known = {id(row) for history in _iterate_histories(old) for row in history.own.rows.values()}
    fresh = [(name, row) for name, row in tail.iterate_rows() if id(row) not in known]
    fresh += [(name, row) for name, at in places if (row := _find_row(thread, name, at))]
    written = {
        (name, row.record.sequence): _derive(
            old, thread, name, row, is_changed=id(row) not in known
        )
        for name, row in fresh
    }
    gone = [] if adds_only else find_removed(old, thread)
    return Changes(thread.thread_id, revision, written, gone)


def _iterate_histories(thread: Thread | None) -> Iterator[SegmentedHistory]:
    for history in thread.histories.values() if thread else ():
        assert isinstance(history, SegmentedHistory)  # noqa: S101  (as they are parsed)
        yield history


def _find_row(thread: Thread, namespace: str, sequence: int) -> Row | None:
    history = thread.histories.get(namespace)
    return history.get_row(sequence) if history else None


def _derive(
    old: Thread | None, thread: Thread, namespace: str, row: Row, *, is_changed: bool
) -> Derived:
    history = thread.histories[namespace]
    before = _find_same_history(old, history)
    is_new = before is None or row.record.sequence > before.line.last_sequence
    return Derived(namespace, history.line.line, row, is_new, is_changed)


def _find_same_history(thread: Thread | None, history: History) -> History | None:
    found = thread.histories.get(history.namespace) if thread else None
    return found if found and found.line.line == history.line.line else None


def find_removed(old: Thread | None, thread: Thread | None = None) -> list[tuple[int, int]]:
    """Return the lines and sequences of versions that a stored thread has no longer."""
    found = []
    for history in _iterate_histories(old):
        now = _find_same_history(thread, history)
        left = set(now.list_sequences()) if now else set()
        found += [(history.line.line, it) for it in history.list_sequences() if it not in left]
    return found


def map_versions(thread: Thread) -> dict[tuple[str, int, int], History]:
    """Return the history of each version by namespace, line and sequence."""
    return {
        (name, history.line.line, sequence): history
        for name, history in thread.histories.items()
        for sequence in history.list_sequences()
    }


def describe_places(places: Collection[Place]) -> dict[str, list[list[int]]]:
    """Return versions as the note of a head names them."""
    names = {name for name, _ in places}
    return {name: find_runs(sorted(at for it, at in places if it == name)) for name in names}


def parse_places(spans: dict[str, list[list[int]]]) -> dict[Place, None]:
    """Return the versions that the note of a head names."""
    return {
        (name, at): None
        for name, some in spans.items()
        for first, last in some
        for at in range(first, last + 1)
    }
