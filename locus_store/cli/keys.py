"""``locus-store db keys …``: the data keys of an encrypted storage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from locus_store.cli.database import db
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import Yes
from locus_store.cli.output import (
    confirm,
    format_count,
    print_line,
    put_found,
    put_outcome,
    select,
    show_progress,
)
from locus_store.cli.tenants import OneTenant, TenantOptions
from locus_store.encryption import KeyStatus, Receipt
from locus_store.errors import InvalidArgumentError
from locus_store.open import Storage

keys = make_group("Show, rotate and destroy the data keys of an encrypted storage.")
db.add_typer(keys, name="keys")

_FIELDS = ("tenant", "number", "key_id", "wrapped_by")


async def _count(backend: Any) -> Counter[str]:
    """Return how many values each data key has sealed."""
    counts: Counter[str] = await backend.count_keys()
    storage = Storage(backend)
    store: Any = storage.store() if storage.has_store else None
    return counts if store is None else counts + await store.count_keys()


def _require_encryption(backend: Any) -> Any:
    encryption = getattr(backend, "encryption", None)
    if encryption is None:
        raise InvalidArgumentError(
            "the storage is opened without encryption: write --url '…?encryption=FILE'"
        )
    return encryption


@add_command(keys, "status")
def print_status(*, at: TenantOptions) -> None:
    """Print a tenant's data keys, and how many stored values each has sealed.

    Reads all data. --json: {keys, values: {key_id: …}}; "clear" are values without encryption.
    """

    async def ask(backend: Any) -> tuple[list[KeyStatus], Counter[str]]:
        encryption, tenant = _require_encryption(backend), backend.tenant or ""
        found = [it for it in await encryption.list_keys() if it.tenant == tenant]
        return found, await _count(backend)

    found, counts = at.ask(ask)
    rows: list[tuple[object, ...]]
    rows = [(it.number, it.key_id, it.wrapped_by, counts[it.key_id]) for it in found]
    rows += [("", it, "", counts[it]) for it in counts.keys() - {it.key_id for it in found}]
    document = {"keys": [select(it, _FIELDS) for it in found], "values": dict(counts)}
    columns = ("number", "key_id", "wrapped_by", "values")
    put_found(document, columns, rows, as_json=at.as_json)


@add_command(keys)
def rotate(
    *,
    at: OneTenant,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Create a new data key of the tenant first.")
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Seal all data of the tenant with its newest data key.")
    ] = False,
) -> None:
    """Wrap the data keys of all tenants with the current key of the key ring.

    With --data, values in clear are encrypted, or refused if encryption is required, and data keys
    that seal nothing are removed. It may run beside writers, and be repeated after it was
    interrupted.
    """

    async def work(backend: Any) -> list[str]:
        encryption, tenant = _require_encryption(backend), backend.tenant or ""
        lines = [f"wrapped {format_count(await encryption.rewrap(), 'data key')} again"]
        if new_key:
            lines.append(f"created data key {await encryption.add_key(tenant)}")
        if data:
            with show_progress("sealing") as advance:
                lines += await _seal(backend, advance)
        return lines

    for line in at.ask(work):
        print_line(line)


async def _seal(backend: Any, advance: Any) -> list[str]:
    """Seal a tenant's data again; return what was done."""
    encryption, tenant, storage = backend.encryption, backend.tenant or "", Storage(backend)
    threads = items = 0
    if backend.capabilities.ttl:  # with an older clock, expired threads would be live again
        await backend.expire()
    async for _ in backend.reencrypt():
        threads += 1
        advance()
    if storage.has_store:
        store: Any = storage.store()
        await store.expire()
        async for _ in store.reencrypt():
            items += 1
    done = f"sealed {format_count(threads, 'thread')} and {format_count(items, 'item')} again"
    counts = await _count(backend)
    known = {it.key_id for it in await encryption.list_keys() if it.tenant == tenant}
    gone = await encryption.retire(tenant, known - counts.keys())
    return [done, f"removed {format_count(len(gone), 'data key')} that seal nothing"]


@add_command(keys)
def destroy(*, at: TenantOptions, yes: Yes = False) -> None:
    """Destroy the data keys of a tenant, whose data can never be read again; print a receipt.

    Backups, write-ahead logs and replicas of the data become unreadable, too. --json: {tenant,
    key_ids, destroyed_at}.
    """

    async def work(backend: Any) -> Receipt:
        encryption, tenant = _require_encryption(backend), backend.tenant or ""
        if not yes:
            confirm(f"This destroys the data keys of tenant {tenant!r}; its data stays unreadable.")
        receipt: Receipt = await encryption.destroy(tenant)
        return receipt

    receipt = at.ask(work)
    put_outcome(asdict(receipt), str(receipt), as_json=at.as_json)
