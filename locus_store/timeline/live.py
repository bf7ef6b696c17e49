"""New versions of a thread, as they are saved."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.types import Version

PAGE = 200
"""The most versions that are returned at once; older new ones are left out."""


async def newer(
    backend: StorageBackend, thread_id: str, sequence: int, *, namespace: str = ""
) -> list[Version] | None:
    """Return the versions of a line above a sequence, the oldest first; ``None``: it has no head.

    One read of the head without its state, and one more if it is newer.
    """
    head = await backend.version(thread_id, namespace=namespace)
    if head is None:
        return None
    if head.mark.sequence <= sequence:
        return []
    most = min(PAGE, head.mark.sequence - sequence)  # an older one may be damaged
    page = await backend.history(thread_id, namespace=namespace, limit=most)
    return list(takewhile(lambda it: it.mark.sequence > sequence, page))[::-1]
