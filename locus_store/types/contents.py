"""The contents of a log's messages, read by column."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from locus_store.types.messages import content_of, require_digest
from locus_store.values.encoding import digest, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.types.messages import LogName


class PackedContents(NamedTuple):
    """The columns of messages that their digests cover, and the digests."""

    message_ids: Sequence[str] = ()
    roles: Sequence[str] = ()
    metadata: Sequence[dict[str, Any]] = ()
    texts: Sequence[str | None] = ()
    payloads: Sequence[bytes | None] = ()
    digests: Sequence[bytes | None] = ()

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        return sum(map(len, filter(None, self.payloads)))


def contents_of(log: LogName, packed: PackedContents, max_state_bytes: int) -> list[Any]:
    """Return the contents of messages.

    Raises:
        IntegrityError: A message is not what was stored, or too large; names it.
    """
    message_ids, roles, metadata, texts, payloads, digests = packed
    thread_id, namespace = log
    heads = zip(repeat(namespace), message_ids, roles, metadata, texts, strict=False)
    sealed = [
        digest(encode(head) + (payload or b""))
        for head, payload in zip(heads, payloads, strict=True)
    ]
    if sealed != digests:
        for message_id, found, stored in zip(message_ids, sealed, digests, strict=True):
            require_digest(thread_id, message_id, found, stored)
    return [
        content_of(message_id, text, payload or None, max_state_bytes)
        for message_id, text, payload in zip(message_ids, texts, payloads, strict=True)
    ]
