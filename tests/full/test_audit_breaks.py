"""Each single change of 10,000 recorded calls is found."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from locus_store import IntegrityError
from locus_store.versions.audit import AuditEntry, Seal, make_leaves, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.full]

TENANTS = 200
ROWS = 50
SEALED = 10
BEGAN = datetime(2026, 11, 27, tzinfo=UTC)


@dataclass
class Log:
    """The record of a tenant in memory, with gaps between the numbers."""

    entries: dict[int, AuditEntry] = field(default_factory=dict)
    seals: list[Seal] = field(default_factory=list)

    async def list_seals(self, after: int, limit: int) -> list[Seal]:
        return [it for it in self.seals if it.number > after][:limit]

    async def list_entries(self, after: int, upto: int, limit: int) -> list[AuditEntry]:
        return [self.entries[it] for it in sorted(self.entries) if after < it <= upto][:limit]


def make_log(tenant: str) -> Log:
    log = Log()
    for at in range(ROWS):
        when = BEGAN + timedelta(milliseconds=at)
        fields = (when, f"who {at % 3}", "commit", f"t{at % 7}", f'{{"count":{at}}}', "done")
        log.entries[2 * at + 2] = AuditEntry(1000 + at, 2 * at + 2, tenant, *fields)
    for first in range(0, ROWS, SEALED):
        some = [log.entries[2 * at + 2] for at in range(first, first + SEALED)]
        number, newest = len(log.seals) + 1, 1000 + first + SEALED
        made = Seal(
            tenant=tenant, number=number, sealed_at=BEGAN, highest=some[-1].entry,
            oldest=newest, newest=newest, leaves=make_leaves(some),
        )  # fmt: skip
        root = made.compute_root(log.seals[-1] if log.seals else None)
        values = {it: getattr(made, it) for it in made.__slots__}
        log.seals.append(Seal(**values | {"root": root}))
    return log


def change(log: Log, key: int) -> str:
    """Change one field of an entry, another one each time."""
    old = log.entries[key]
    name = AuditEntry._fields[key // 2 % len(AuditEntry._fields)]
    if name == "entry":
        del log.entries[key]
        log.entries[key + 1] = old._replace(entry=key + 1)
        return f"entry {key} .*deleted"
    value = getattr(old, name)
    new = value + timedelta(microseconds=1) if name == "recorded_at" else f"{value}x"
    log.entries[key] = old._replace(**{name: value + 1 if isinstance(value, int) else new})
    return f"entry {key} .*changed"


def delete(log: Log, key: int) -> str:
    del log.entries[key]
    return f"entry {key} .*deleted"


def insert(log: Log, key: int) -> str:
    """Insert a copy before an entry, by a transaction of its time, or of today."""
    number = random.Random(key).choice([1000, log.entries[key].transaction_id, 9_999_999])
    log.entries[key - 1] = log.entries[key]._replace(entry=key - 1, transaction_id=number)
    return f"entry {key - 1} was inserted"


def exchange(log: Log, key: int) -> str:
    """Exchange an entry with the next one, or the first."""
    other = key + 2 if key + 2 in log.entries else 2
    one, two = log.entries[key], log.entries[other]
    log.entries[key], log.entries[other] = two._replace(entry=key), one._replace(entry=other)
    return f"entry {min(key, other)} .*changed"


@pytest.mark.parametrize("harm", [change, delete, insert, exchange])
async def test_each_change_of_a_row_is_found(harm: Callable[[Log, int], str]) -> None:
    found = 0
    for log in map(make_log, map(str, range(TENANTS))):
        whole = dict(log.entries)
        assert (await verify(log, {})).entries == ROWS
        for key in whole:
            told = harm(log, key)
            with pytest.raises(IntegrityError, match=told):
                await verify(log, {})
            log.entries = dict(whole)
            found += 1
    assert found == TENANTS * ROWS == 10_000


def harmed_seals(seals: list[Seal]) -> Iterator[list[Seal]]:
    for at, it in enumerate(seals):
        yield seals[:at] + seals[at + 1 :] if at + 1 < len(seals) else [*seals[:-2], it]
        for name in ("sealed_at", "highest", "oldest", "newest", "root", "leaves"):
            value = getattr(it, name)
            other = value + timedelta(1) if name == "sealed_at" else value
            other = value + 1 if isinstance(value, int) else other
            other = bytes([value[0] ^ 1, *value[1:]]) if isinstance(value, bytes) else other
            values = {field: getattr(it, field) for field in it.__slots__}
            yield [*seals[:at], Seal(**values | {name: other}), *seals[at + 1 :]]


async def test_each_change_of_a_seal_is_found() -> None:
    log = make_log("default")
    for seals in harmed_seals(log.seals):
        log.seals = seals
        with pytest.raises(IntegrityError, match=r"^seal "):
            await verify(log, {})
