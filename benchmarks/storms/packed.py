"""A pack after every second save, so that storms meet packs all the time."""

from __future__ import annotations

from typing import NoReturn

from locus_store.sql import packs
from locus_store.versions import packing


def pack_often() -> None:
    """Pack whatever can be packed; a load that cannot use a pack is an error."""
    packing.PACK_SAVES = 2
    packing.is_due = lambda stored: bool(stored.payloads)
    packs.damaged_packs = _refuse


def _refuse(thread_id: str) -> NoReturn:
    raise RuntimeError(f"the packs of thread {thread_id!r} do not give its state")
