"""The meaning of what scripts that read answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import versions
from locus_store.backends.redis.records import damage, pairs, parsed, parsed_write, read_log
from locus_store.errors import IntegrityError
from locus_store.types import Mark, PendingWrite, Version

if TYPE_CHECKING:
    from collections.abc import Sequence


def whole(thread_id: str, found: list[Any]) -> list[Any]:
    """Return a script's result, if no key is missing.

    Raises:
        IntegrityError: The namespace lost keys.
    """
    if found and found[0] == b"damaged":
        raise damaged(thread_id)
    return found


def damaged(thread_id: str) -> IntegrityError:
    """Return the error for a thread that lost keys."""
    return IntegrityError(
        f"a key of thread {thread_id!r} is missing in Redis or was changed; restore the "
        "server from a backup, or delete the thread. Did the server evict it? Set maxmemory-policy "
        "noeviction"
    )


def digest_in(text: bytes) -> bytes:
    """Return a digest from hexadecimal digits."""
    with damage("a digest"):
        return bytes.fromhex(text.decode())


def version_in(
    thread_id: str, namespace: str, store: bytes, line: bytes, row: Sequence[bytes]
) -> Version:
    """Return a version in a row of ``history``."""
    sequence, name, parent, header = row
    record, created_at = parsed(header, int(sequence), name.decode())
    return Version(
        mark=Mark(store.decode(), int(line), record.sequence, record.digest),
        thread_id=thread_id,
        namespace=namespace,
        checkpoint_id=record.checkpoint_id,
        parent_id=parent.decode() or None,
        metadata=record.metadata,
        labels=record.labels,
        created_at=created_at,
    )


def writes_in(checkpoint_id: str, flat: Sequence[bytes]) -> list[PendingWrite]:
    """Return a checkpoint's pending writes in a list of fields and values."""
    found = (parsed_write(checkpoint_id, field, value).write for field, value in pairs(flat))
    return sorted(found, key=versions.in_order)


def records_in(
    thread_id: str, order: Sequence[bytes], log: Sequence[bytes]
) -> list[tuple[int, int, bytes]]:
    """Return (sequence, chain, payload) of the versions in an order, from their part of the log."""
    with damage(f"the log of thread {thread_id!r}"):
        sequences = [int(score) for _, score in pairs(order)]
        payloads = list(read_log(log))[: len(sequences)]  # a block may go on behind the last
        each = zip(sequences, payloads, strict=True)
        return [(sequence, chain, payload) for sequence, (chain, payload) in each]
