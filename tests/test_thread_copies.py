"""A thread in memory: a copy and the original share what neither has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from properties import given

from locus_store.types import ArchivedWrite, PendingWrite
from locus_store.versions import Line, Record
from locus_store.versions.histories import History, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "write", "take"]), st.integers(0, 5)))


def space_of(count: int) -> History:
    history = History("", Line(line=1))
    for sequence in range(1, count + 1):
        change(history, "put", sequence)
    return history


def change(history: History, kind: str, number: int) -> None:
    newest = max(history.rows, default=0)
    if kind == "put":
        sequence = newest + 1
        chain = 1 + sequence // 3 * 3
        record = Record(
            sequence=sequence,
            chain=chain,
            parent=None,
            checkpoint_id=f"c{sequence}",
            digest=b"",
            metadata={},
            labels={},
        )
        history.put(Row(record, NOW, b"[]"))
    elif kind == "write":
        name = f"c{1 + number % max(newest, 1)}"
        write = PendingWrite(task_id=f"t{number}", idx=0, channel="c", type="", payload=b"")
        history.put_write(ArchivedWrite(checkpoint_id=name, write=write, created_at=NOW))
    elif history.rows:
        history.remove(sorted(history.rows)[number % len(history.rows)])


def told(history: History) -> Any:
    chains = {chain: history.payloads(chain, 99) for chain in range(99)}
    names = [f"c{n}" for n in range(99)]
    return (
        list(history.rows),
        {it: history.named(history.line, it) for it in names},
        {it: found for it, found in chains.items() if found},
        {it: found for it in names if (found := list(history.get_writes(it)))},
    )


def changed(history: History, changes: Iterable[tuple[str, int]]) -> History:
    for it in changes:
        change(history, *it)
    return history


@given(before=CHANGES, mine=CHANGES, its=CHANGES, again=CHANGES)
def test_a_change_of_a_copy_or_of_its_original_is_seen_by_one(
    before: list[Any], mine: list[Any], its: list[Any], again: list[Any]
) -> None:
    original = changed(space_of(4), before)
    copy = original.copy()
    assert told(copy) == told(original)
    changed(original, mine)
    changed(copy, its)
    second = changed(copy.copy(), again)
    assert told(original) == told(changed(changed(space_of(4), before), mine))
    assert told(copy) == told(changed(changed(space_of(4), before), its))
    assert told(second) == told(changed(changed(changed(space_of(4), before), its), again))
