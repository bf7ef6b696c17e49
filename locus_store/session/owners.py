"""The users of threads: who may read one, and who may write it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from locus_store.backend import StorageBackend
from locus_store.runtime.forks import make_lock
from locus_store.runtime.gathering import NamedLocks
from locus_store.session.config import Call
from locus_store.types.thread_info import (
    DescribesThreads,
    PutThread,
    UserIdType,
    claim_of,
    may_see,
    require_describing,
    require_owner,
)

OWNER: Final = "owner"
"""Label of a version: the user who saved it, so that a load needs no second query."""


class Owners:
    """Claims threads for their first users.

    Args:
        backend: Gives the backend.
        seconds: How long a claim is remembered: for so long a thread that another process deletes
            and gives to another user may be taken for the first user's.
        users: The type of users' ids.
    """

    def __init__(
        self, backend: Callable[[], StorageBackend], seconds: float, users: UserIdType
    ) -> None:
        self._backend = backend
        self._seconds = seconds
        self._users = users
        self._is_opened = False
        self._seen: SeenThreads[str] = SeenThreads()
        self._turns = NamedLocks()  # one for each event loop is enough

    @property
    def threads(self) -> DescribesThreads:
        """The backend, if it keeps facts of threads."""
        return require_describing(self._backend())

    async def open(self) -> DescribesThreads:
        """Return the backend, whose users' ids are of the session's type.

        Raises:
            SchemaError: They are of another type.
        """
        threads = self.threads
        if not self._is_opened:
            await threads.require_user_id_type(self._users)
            self._is_opened = True
        return threads

    async def to_claim(self, call: Call) -> PutThread | None:
        """Return a save's claim, ``None`` if the thread is the user's; refuse another user's."""
        if call.user_id is None:
            return None
        owner = await self.find_owner(call.thread_id)
        if owner is not None:
            require_owner(call.thread_id, owner, call.user_id)
            return None
        return claim_of(
            call.thread_id, call.user_id, name=call.thread_name, metadata=call.thread_meta
        )

    def remember_claim(self, claim: PutThread, began: float) -> None:
        """Remember a claim that a save has made, which was true at a time."""
        self._seen.put(claim.thread_id, str(claim.user_id), began)

    async def claim(self, call: Call, check: Callable[[], object] = lambda: None) -> None:
        """Make the thread the user's before a write, if the call names a user.

        Args:
            call: The call.
            check: Refuses what cannot be written, before a thread is claimed for it.

        Raises:
            NotOwnerError: It is another user's.
        """
        claim = await self.to_claim(call)
        if claim is None:
            return
        check()
        async with self._turns.get_lock(call.thread_id):
            if await self.to_claim(call) is None:  # a call beside this one has claimed it
                return
            began = time.monotonic()
            await self.threads.put_facts(claim)
            self.remember_claim(claim, began)

    async def may_read(self, call: Call) -> bool:
        """Return whether the call's user may see the thread; also if it does not exist."""
        return call.user_id is None or may_see(await self.find_owner(call.thread_id), call.user_id)

    async def require(self, call: Call) -> None:
        """Refuse a write of another user, without claiming the thread."""
        if call.user_id is not None:
            require_owner(call.thread_id, await self.find_owner(call.thread_id), call.user_id)

    async def may_load(
        self, call: Call, labels: Mapping[str, Any], *, is_working: bool = False
    ) -> bool:
        """Return whether the call's user may see a version or working state with these labels."""
        if call.user_id is None or labels.get(OWNER) == call.user_id:
            return True
        if is_working and OWNER in labels:  # of a former thread of this id
            return False
        return await self.may_read(call)

    def forget(self, thread_id: str) -> None:
        """Forget the user of a thread that was deleted."""
        self._seen.forget(thread_id)

    async def find_owner(self, thread_id: str) -> str | None:
        """Return the user of a thread, as it was at most so many seconds ago."""
        if (seen := self._seen.get(thread_id, self._seconds)) is not None:
            return seen
        began = time.monotonic()
        found = await (await self.open()).thread_facts(thread_id)
        if found is None or found.user_id is None:
            return None
        self._seen.put(thread_id, found.user_id, began)
        return found.user_id


def make_owner_label(call: Call) -> dict[str, str]:
    """Return the label of the call's user."""
    return {} if call.user_id is None else {OWNER: call.user_id}


T = TypeVar("T")

_REMEMBERED_THREADS: Final = 4096
"""The threads seen least recently go first."""


class SeenThreads(Generic[T]):
    """Facts of threads with the time at which each was true; usable from any thread."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._seen: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def get(self, thread_id: str, seconds: float) -> T | None:
        """Return what was true at most so many seconds ago."""
        with self._lock:
            found = self._seen.get(thread_id)
        return found[0] if found and time.monotonic() - found[1] < seconds else None

    def put(self, thread_id: str, fact: T, at: float) -> None:
        """Remember a fact, unless a later one is known."""
        with self._lock:
            known = self._seen.pop(thread_id, None)
            self._seen[thread_id] = known if known and known[1] > at else (fact, at)
            while len(self._seen) > _REMEMBERED_THREADS:
                self._seen.popitem(last=False)

    def forget(self, thread_id: str) -> None:
        with self._lock:
            self._seen.pop(thread_id, None)

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()
