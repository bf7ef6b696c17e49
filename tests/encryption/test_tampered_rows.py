"""Stored rows are tampered with: a read gives what was saved, or an error.

Whoever tampers has the storage without its keys, and changes, swaps, moves and cuts off sealed
values and digests, or puts others in clear in their place.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from places import URLS
from test_sealing import tamper
from test_stored import fill
from tiers import first_of

from locus_store import Encryption, IntegrityError, open_storage
from locus_store.encryption.values import SEALED
from locus_store.types import ArchivedThread
from locus_store.types.items import StoreItem
from locus_store.versions.sizes import StatusesWanted, ThreadStatus

pytestmark = pytest.mark.anyio

ROWS = 60
THREADS = ("t", "u")
Site = tuple[str, int, int]
"""A kind, and the places of its row."""


def list_sites(thread: ArchivedThread) -> Iterator[Site]:
    for at, line in enumerate(thread.lines):
        for nth, record in enumerate(line.records):
            yield from ((kind, at, nth) for kind in ("payload", "digest"))
            for kind in ("metadata", "labels"):
                if getattr(record, kind):
                    yield kind, at, nth
        yield from (("write", at, nth) for nth in range(len(line.writes)))
    yield from (("message", 0, nth) for nth in range(len(thread.messages)))


def get(thread: ArchivedThread, site: Site) -> bytes | dict[str, Any]:
    """Return the stored bytes of a site, or its labels."""
    kind, at, nth = site
    if kind == "message":
        return thread.messages[nth].payload or b""
    line = thread.lines[at]
    if kind == "write":
        return line.writes[nth].write.payload
    found = getattr(line.records[nth], kind)
    is_sealed = isinstance(found, dict) and SEALED in found
    return base64.b64decode(found[SEALED]) if is_sealed else found


def put(thread: ArchivedThread, site: Site, content: bytes | dict[str, Any]) -> ArchivedThread:
    """Return a thread with other bytes, or metadata, at a site."""
    kind, at, nth = site
    if kind == "message":
        messages = list(thread.messages)
        messages[nth] = messages[nth]._replace(payload=content)
        return replace(thread, messages=messages)
    line = thread.lines[at]
    if kind == "write":
        writes = list(line.writes)
        writes[nth] = replace(writes[nth], write=replace(writes[nth].write, payload=content))
        changed = replace(line, writes=writes)
    else:
        if kind in {"metadata", "labels"} and isinstance(content, bytes):
            kept = getattr(line.records[nth], kind)
            content = {**kept, SEALED: base64.b64encode(content).decode()}
        records = list(line.records)
        records[nth] = replace(records[nth], **{kind: content})
        changed = replace(line, records=records)
    return replace(thread, lines=[*thread.lines[:at], changed, *thread.lines[at + 1 :]])


def tamper_thread(
    threads: list[ArchivedThread], thread: ArchivedThread, rng: random.Random
) -> tuple[str, ArchivedThread]:
    """Return the way, and a thread of which one or two sites have other bytes."""
    site = rng.choice(list(list_sites(thread)))
    before = get(thread, site)
    way = rng.choice(["change", "swap", "move", "clear"])
    if way == "clear":
        is_json = site[0] in {"metadata", "labels"}
        content = rng.choice([b"", b"\x02\x00\x02\x00\x02", b"me"])
        if is_json:
            content = rng.choice([{"who": "me"}, {}])
        if site[0] == "digest":
            content = rng.randbytes(16)
        return f"{site[0]} {way}", put(thread, site, content)
    if way == "change" and isinstance(before, dict):
        return f"{site[0]} {way}", put(thread, site, before | {"user_id": "me"})
    if way == "change":
        other = tamper(before, rng)
        if site[0] == "digest":
            other = (other + bytes(16))[:16]
        return f"{site[0]} {way}", put(thread, site, other)
    donor = thread if way == "swap" else rng.choice([it for it in threads if it is not thread])
    alike = [it for it in list_sites(donor) if it[0] == site[0]]
    kind = rng.choice(alike)
    changed = put(thread, site, get(donor, kind))
    if way == "swap":
        changed = put(changed, kind, before)
    return f"{site[0]} {way}", changed


async def read_whole(storage: Any, thread_id: str) -> Any:
    thread = await storage.backend.read_thread(thread_id)
    return thread.lines, thread.messages


def tamper_item(items: list[StoreItem], item: StoreItem, rng: random.Random) -> dict[str, Any]:
    """Return another value for an item."""
    ways = [
        {SEALED: base64.b64encode(tamper(base64.b64decode(item.value[SEALED]), rng)).decode()},
        rng.choice([it for it in items if it is not item]).value,
        {"x": "me"},
        {SEALED: ""},
    ]
    return rng.choice(ways)


async def list_heads(backend: Any) -> list[Any]:
    return [(it.thread_id, it.checkpoint_id, it.metadata) for it in await backend.heads()]


async def list_versions(backend: Any, thread_id: str) -> list[Any]:
    found = await backend.history(thread_id)
    return [(it.checkpoint_id, it.metadata, it.labels) for it in found]


def list_reads(storage: Any, thread_id: str) -> list[Callable[[], Awaitable[Any]]]:
    """Return the calls that read a part of a thread, and an item."""
    backend = storage.backend
    return [
        *(partial(backend.load, thread_id, f"v{it}") for it in range(3)),
        partial(list_versions, backend, thread_id),
        partial(list_heads, backend),
        partial(backend.get_writes, thread_id, "v2"),
        partial(storage.messages().load, thread_id, namespace="n"),
        partial(storage.store().get, (thread_id,), "k"),
    ]


@pytest.mark.parametrize("scheme", URLS)
async def test_a_list_of_threads_shows_no_record_of_another_thread(
    encryption: Encryption, scheme: str, tmp_path: Path
) -> None:
    url = URLS[scheme].format(tmp_path)
    async with open_storage(url, encryption=encryption) as storage:
        for thread_id in THREADS:
            await fill(storage, thread_id)
        await storage.backend.write_state("u", {"said": ["of u"]}, checkpoint_id="v3")
        before = {it.thread_id: it.record for it in await list_statuses(storage)}
        assert all(before.values())
    async with open_storage(url) as plain:
        changed, other = [await plain.backend.read_thread(it) for it in THREADS]
        [at] = [at for at, it in enumerate(changed.lines) if not it.namespace]
        changed = put(changed, ("payload", at, 2), get(other, ("payload", at, 3)))
        await plain.backend.rewrite_thread("t", lambda _: changed)
    async with open_storage(url, encryption=encryption) as storage:
        found = {it.thread_id: it.record for it in await list_statuses(storage)}
        assert found == {**before, "t": None}


async def list_statuses(storage: Any) -> list[ThreadStatus]:
    found: list[ThreadStatus] = await storage.backend.find_statuses(StatusesWanted(limit=9))
    return found


async def read_stored(
    url: str, encryption: Encryption, other_url: str | None = None
) -> tuple[list[ArchivedThread], list[StoreItem]]:
    """Return the sealed threads and items of a new storage, then those of another tenant."""
    threads, items = list[ArchivedThread](), list[StoreItem]()
    of_other: dict[str, Any] = {"tenant": "other"}
    for place, options in ((url, {}), (other_url or url, of_other)):
        async with open_storage(place, encryption=encryption, **options) as storage:
            for thread_id in THREADS:
                await fill(storage, thread_id)
        async with open_storage(place, **options) as plain:
            for thread_id in THREADS:
                threads.append(await plain.backend.read_thread(thread_id))
                items.append(await plain.store().get_item((thread_id,), "k"))
    return threads, items


async def count_refused(
    url: str, encryption: Encryption, rows: int, other_url: str | None = None
) -> Counter[str]:
    """Tamper that many times; return how often in each way, and how often nothing was changed.

    ``other_url`` is of a storage with tenants, if that of ``url`` has none.
    """
    rng, tried = random.Random(rows), Counter[str]()
    threads, items = await read_stored(url, encryption, other_url)
    async with open_storage(url, encryption=encryption) as storage, open_storage(url) as plain:
        wholes = {it: await read_whole(storage, it) for it in THREADS}
        parts = {it: [await read() for read in list_reads(storage, it)] for it in THREADS}
        while tried.total() - tried["equal"] < rows:
            at = rng.randrange(len(THREADS))
            thread_id = THREADS[at]
            if rng.random() < 0.1:
                value = tamper_item(items, items[at], rng)
                await plain.store().put((thread_id,), "k", value, items[at].metadata)
                with pytest.raises(IntegrityError):
                    await storage.store().get((thread_id,), "k")
                with pytest.raises(IntegrityError):
                    await storage.store().list((thread_id,))
                await plain.store().put((thread_id,), "k", items[at].value, items[at].metadata)
                tried["item"] += 1
                continue
            way, changed = tamper_thread(threads, threads[at], rng)
            if changed == threads[at]:
                continue
            tried[way] += 1
            await plain.backend.rewrite_thread(thread_id, lambda _, it=changed: it)
            try:  # a record of a copy of the thread is as good
                assert await read_whole(storage, thread_id) == wholes[thread_id], way
                tried["equal"] += 1
            except IntegrityError:
                pass
            number = rng.randrange(len(parts[thread_id]))
            with suppress(IntegrityError):
                found = await list_reads(storage, thread_id)[number]()
                assert found == parts[thread_id][number], way
            back = threads[at]
            await plain.backend.rewrite_thread(thread_id, lambda _, it=back: it)
        assert {it: await read_whole(storage, it) for it in THREADS} == wholes
    return tried


async def count_accepted_rows(url: str, encryption: Encryption, rows: int) -> Counter[str]:
    """Tamper that many times with what was read of a storage, and open it in memory.

    Returns:
        How often in each way; ``accepted``: another value was opened; ``equal``: the same one.
    """
    rng, tried, count = random.Random(rows), Counter[str](), len(THREADS)
    threads, items = await read_stored(url, encryption)
    async with open_storage(url, encryption=encryption) as storage:
        sealing = await storage.backend.get_sealing()
    wholes = [sealing.open_thread(it) for it in threads[:count]]
    for _ in range(rows):
        at = rng.randrange(count)
        open_changed: Callable[[], Any]
        if rng.random() < 0.1:
            way, value = "item", tamper_item(items, items[at], rng)
            open_changed = partial(sealing.open_item, replace(items[at], value=value))
        else:
            way, changed = tamper_thread(threads, threads[at], rng)
            while changed == threads[at]:
                way, changed = tamper_thread(threads, threads[at], rng)
            open_changed = partial(sealing.open_thread, changed)
        tried[way] += 1
        try:
            found = open_changed()
        except IntegrityError:
            continue
        tried["equal" if found == wholes[at] else "accepted"] += 1
    return tried


async def test_no_tampered_row_is_accepted(encryption: Encryption, url: str) -> None:
    tried = await count_accepted_rows(url, encryption, 2000)
    assert tried["accepted"] == 0
    assert len(tried) > 10


@pytest.mark.parametrize("scheme", first_of("sqlite", "sharded"))
async def test_tampered_rows_are_refused(
    scheme: str, encryption: Encryption, tmp_path: Path
) -> None:
    url = URLS[scheme].format(tmp_path)
    tried = await count_refused(url, encryption, ROWS)
    assert len(tried) > 10
    assert tried["equal"] < ROWS / 10
