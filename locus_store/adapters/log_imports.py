"""Import of message logs from a framework's own SQL tables. The source is only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from locus_store.adapters.sql_sources import time_of
from locus_store.errors import IntegrityError
from locus_store.types import ArchivedMessage, ArchivedThread
from locus_store.types.messages import put_of
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.backend import StoresThreads
    from locus_store.messages import NewMessage

READABLE: Final = "sessions are read from sqlite:/// and postgresql:// URLs"


async def put_thread(
    backend: StoresThreads,
    thread_id: str,
    messages: list[ArchivedMessage],
    *,
    user_id: str | None = None,
    expires_at: datetime | None = None,
) -> bool:
    """Store a thread whole or not at all, and compare; return whether it was new.

    Args:
        backend: Where to.
        thread_id: The thread.
        messages: All of its messages.
        user_id: The thread's user.
        expires_at: The end of the thread's time to live.

    Raises:
        ConflictError: There is a thread of that id with other messages.
        IntegrityError: What was stored is something else.
    """
    times = [it.created_at for it in messages]
    thread = ArchivedThread(
        thread_id=thread_id,
        user_id=user_id,
        name=None,
        metadata={},
        created_at=min(times),
        active_at=minute_of(max(times)),
        expires_at=expires_at,
        lines=[],
        messages=messages,
    )
    is_new = await backend.write_thread(thread)
    there = await backend.read_thread(thread_id)
    if there is None or there.messages != messages:
        raise IntegrityError(f"the thread {thread_id!r} is not what was imported; import it again")
    return is_new


def archived(
    message: NewMessage,
    sequence: int,
    created_at: str | float | datetime,
    backend: StoresThreads,
    namespace: str = "",
) -> ArchivedMessage:
    """Return a message with its place and time.

    Raises:
        SerializationError: JSON cannot keep it exactly, or it is too large.
    """
    put = put_of(message, namespace, {}, backend.max_state_bytes)
    return ArchivedMessage(
        namespace=namespace,
        sequence=sequence,
        message_id=put.message_id,
        role=put.role,
        metadata=put.metadata,
        created_at=time_of(created_at),
        text=put.text,
        payload=put.payload,
    )
