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
) -> list[Version]:
    """Return the versions of a line above a sequence, the oldest first.

    One read without states. No version is returned for a thread that does not exist.
    """
    found = await backend.history(thread_id, namespace=namespace, limit=1)
    if not found or found[0].mark.sequence <= sequence:
        return []
    most = min(PAGE, found[0].mark.sequence - sequence)  # an older one may be damaged
    page = await backend.history(thread_id, namespace=namespace, limit=most)
    return list(takewhile(lambda it: it.mark.sequence > sequence, page))[::-1]
