"""The contents of a log's messages, read by column."""

from __future__ import annotations

from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from locus_store.errors import IntegrityError
from locus_store.types.messages import content_of, require_digest
from locus_store.values.encoding import digest, encode, verified_bodies
from locus_store.values.surrogates import decode_restored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.types.messages import LogName


class PackedContents(NamedTuple):
    """The columns of messages that their digests cover, and the digests."""

    message_ids: Sequence[str] = ()
    roles: Sequence[str] = ()
    metadata: Sequence[dict[str, Any]] = ()
    texts: Sequence[str | None] = ()
    payloads: Sequence[bytes] = ()
    digests: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        return sum(map(len, self.payloads))


def contents_of(log: LogName, packed: PackedContents, max_state_bytes: int) -> list[Any]:
    """Return the contents of messages.

    Raises:
        IntegrityError: A message is not what was stored, or too large; names it.
    """
    thread_id, namespace = log
    heads = zip(repeat(namespace), *packed[:4], strict=False)
    sealed = [
        digest(encode(head) + payload) for head, payload in zip(heads, packed.payloads, strict=True)
    ]
    if sealed == list(packed.digests):
        with suppress(ValueError, IntegrityError):  # raised below, with the message's id
            return list(map(decode_restored, verified_bodies(packed.payloads, max_state_bytes)))
    contents = []
    for message_id, text, payload, found, stored in zip(
        packed.message_ids, packed.texts, packed.payloads, sealed, packed.digests, strict=True
    ):
        require_digest(thread_id, message_id, found, stored)
        contents.append(content_of(message_id, text, payload or None, max_state_bytes))
    return contents
