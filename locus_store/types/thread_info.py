"""A thread's own facts, beside its versions and messages: user, name, metadata, run and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from locus_store.errors import IntegrityError, InvalidArgumentError, NotOwnerError, UnsupportedError
from locus_store.types.arguments import (
    check_choice,
    check_limit,
    check_text,
    check_time,
    copy_json_object,
)
from locus_store.values.frames.operations import iterate_strings
from locus_store.values.text import fold

MAX_NAME_CHARACTERS: Final = 1000

RESERVED_KEY: Final = "_thread_info"
"""Key in a thread's stored metadata: the run, and the time that the caller gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFacts:
    """The facts of a thread itself."""

    thread_id: str
    user_id: str | None
    """The first user that a put named."""

    name: str | None
    metadata: dict[str, Any]
    run_id: str | None
    created_at: datetime
    """Of a thread that was deleted and created again: the second time."""

    updated_at: datetime
    """The time that the last put gave, or that of the last activity since."""


class StoredFacts(NamedTuple):
    """The columns of a thread that a put sets."""

    user_id: str | None
    name: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutThread:
    """New facts of a thread; validated."""

    thread_id: str
    user_id: str | None
    name: str | None
    metadata: dict[str, Any]
    run_id: str | None
    updated_at: datetime | None
    is_claim: bool
    """Keep the name and metadata that are stored."""

    def apply_to(self, old: StoredFacts, active_at: datetime) -> StoredFacts:
        """Return what is stored after the put: the reference for every backend.

        Args:
            old: What is stored before it.
            active_at: The last activity; a later one outdates the given time.

        Raises:
            NotOwnerError: The thread is another user's.
        """
        require_owner(self.thread_id, old.user_id, self.user_id)
        user_id, name, metadata = old.user_id or self.user_id, self.name, self._pack(active_at)
        if self.is_claim:
            name = old.name or name
            has_its_own = old.metadata.keys() - {RESERVED_KEY}
            metadata = old.metadata if has_its_own else {**metadata, **old.metadata}
        if name is None and user_id is None:
            name = ""  # without versions a thread needs a user or a name to exist
        return StoredFacts(user_id, name, metadata)

    def _pack(self, active_at: datetime) -> dict[str, Any]:
        """Return the metadata with the facts that have no column."""
        run = {} if self.run_id is None else {"run_id": self.run_id}
        if self.updated_at is not None:
            run |= {"updated_at": self.updated_at.isoformat(), "as_of": active_at.isoformat()}
        return {**self.metadata, **({RESERVED_KEY: run} if run else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsWanted:
    """The criteria of a list of threads."""

    user_id: str | None
    needle: str | None
    """Only threads whose name, or a string in whose metadata, has it; folded."""

    offset: int
    limit: int

    def takes(self, name: str | None, metadata: Mapping[str, Any]) -> bool:
        """Return whether the thread's facts match the search."""
        if self.needle is None:
            return True
        ours = {key: it for key, it in metadata.items() if key != RESERVED_KEY}
        return any(self.needle in fold(it) for it in (name or "", *iterate_strings([ours])))


class DescribesThreads(ABC):
    """A backend that keeps facts of threads themselves."""

    @abstractmethod
    async def put_facts(self, put: PutThread) -> None:
        """Store a thread's facts in one transaction; see ``put_thread``."""

    @abstractmethod
    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        """Return the facts of a live thread that exists, in one statement."""

    @abstractmethod
    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        """Return the facts of the threads that match, the most recently active first."""

    @abstractmethod
    async def clear_versions(self, thread_id: str) -> None:
        """Remove all versions of a thread's root namespace in one transaction.

        Its messages, its facts and its other namespaces stay.
        """

    async def require_user_id_type(self, users: UserIdType) -> None:
        """Check that the storage keeps users' ids of this type; most keep them as text.

        Where ids have a column of numbers on request, an empty database takes the type.

        Raises:
            SchemaError: Its ids are of another type; names the command to run.
        """
        del users

    async def put_thread(
        self,
        thread_id: str,
        *,
        user_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        updated_at: datetime | None = None,
    ) -> None:
        """Replace a thread's facts but its user, who is the first that is named; create the thread.

        A put does not count as activity of a thread that exists.

        Args:
            thread_id: The thread.
            user_id: The user who puts; ``None``: anyone.
            name: Up to 1,000 characters; the empty one is none.
            metadata: A JSON object.
            run_id: 1 to 255 characters.
            updated_at: Comes back until a later save or message; ``None``: the last activity does.

        Raises:
            InvalidArgumentError, SerializationError: A fact is not valid; nothing was written.
            NotOwnerError: The thread is another user's; nothing was written.
        """
        put = PutThread(
            thread_id=thread_id,
            user_id=user_id,
            name=name,
            metadata=copy_json_object("metadata", metadata),
            run_id=run_id,
            updated_at=updated_at,
            is_claim=False,
        )
        await self.put_facts(check_put(put))

    async def claim_thread(
        self,
        thread_id: str,
        user_id: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a thread a user's, unless it is already; one statement if it is.

        Args:
            thread_id: The thread; created if it does not exist.
            user_id: The user.
            name: Of a thread that had no user; replaces no name.
            metadata: Of a thread that had no user; replaces no metadata.

        Raises:
            InvalidArgumentError, SerializationError: See ``put_thread``.
            NotOwnerError: It is another user's; nothing was written.
        """
        put = claim_of(thread_id, user_id, name=name, metadata=metadata)
        found = await self.facts_of(thread_id)
        if found is not None and found.user_id is not None:
            require_owner(thread_id, found.user_id, user_id)
        else:
            await self.put_facts(put)

    async def thread_facts(
        self, thread_id: str, *, user_id: str | None = None
    ) -> ThreadFacts | None:
        """Return a thread's facts; ``None`` if there is no such thread, or it is another user's."""
        check_text("thread_id", thread_id)
        found = await self.facts_of(thread_id)
        return found if found and may_see(found.user_id, user_id) else None

    async def threads_by_activity(
        self,
        user_id: str | None = None,
        *,
        search: str | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[ThreadFacts]:
        """Return threads with their facts, the most recently active first, in exact order.

        Args:
            user_id: Of this user only.
            search: Only threads whose name, or a string in whose metadata, has this, without
                regard to case and accents. Keys are not looked into.
            offset: So many that match are left out first.
            limit: At most this many; 0: none.
        """
        check_text("user_id", user_id, optional=True)
        if search is not None and not isinstance(search, str):
            raise InvalidArgumentError(f"search must be a str, not {search!r}")
        needle = None if search is None else fold(search)
        at, most = check_limit(offset, "offset"), check_limit(limit)
        wanted = ThreadsWanted(user_id=user_id, needle=needle, offset=at, limit=most)
        return await self.find_facts(wanted) if most else []


def claim_of(
    thread_id: str,
    user_id: str,
    *,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> PutThread:
    """Return a claim, for ``write_state(claim=)``; see ``claim_thread``.

    Raises:
        InvalidArgumentError, SerializationError: See ``put_thread``.
    """
    check_text("user_id", user_id)
    put = PutThread(
        thread_id=thread_id,
        user_id=user_id,
        name=name,
        metadata=copy_json_object("metadata", metadata),
        run_id=None,
        updated_at=None,
        is_claim=True,
    )
    return check_put(put)


def require_describing(backend: object) -> DescribesThreads:
    """Return a backend, typed as one that keeps facts of threads; refuse any other."""
    if not isinstance(backend, DescribesThreads):
        raise UnsupportedError(
            f"{type(backend).__name__} keeps no users and names of threads; a session needs "
            "SQLite, PostgreSQL, Oracle or memory"
        )
    return backend


def may_see(owner: str | None, user_id: str | None) -> bool:
    """Return whether a user may see a thread: it is the user's, it has no user, or no user asks."""
    return None in {owner, user_id} or owner == user_id


def require_owner(thread_id: str, owner: str | None, user_id: str | None) -> None:
    """Refuse to change another user's thread."""
    if not may_see(owner, user_id):
        raise NotOwnerError(
            f"thread {thread_id!r} is another user's; nothing was written. Use another thread id"
        )


def make_facts(
    thread_id: str,
    user_id: str | None,
    name: str | None,
    stored_metadata: Mapping[str, Any],
    *,
    created_at: datetime,
    active_at: datetime,
) -> ThreadFacts:
    """Return the facts of a stored thread.

    Raises:
        IntegrityError: The run or the time is not what a put stores.
    """
    metadata = dict(stored_metadata)
    run = metadata.pop(RESERVED_KEY, {})
    try:
        given, as_of = (datetime.fromisoformat(run[it]) for it in ("updated_at", "as_of"))
        updated_at = given if active_at <= as_of else active_at
    except KeyError:
        updated_at = active_at
    except (TypeError, ValueError) as exc:
        raise IntegrityError(
            f"the metadata of thread {thread_id!r} has {RESERVED_KEY}={run!r}, which no put "
            "stores; restore the database from a backup, or put the thread's info again"
        ) from exc
    return ThreadFacts(
        thread_id=thread_id,
        user_id=user_id,
        name=name or None,
        metadata=metadata,
        run_id=run.get("run_id"),
        created_at=created_at,
        updated_at=updated_at,
    )


def check_put(put: PutThread) -> PutThread:
    """Return new facts; refuse those that some backend cannot store."""
    check_text("thread_id", put.thread_id)
    for field, value in (("user_id", put.user_id), ("run_id", put.run_id)):
        check_text(field, value, optional=True)
    check_text("name", put.name, minimum=0, maximum=MAX_NAME_CHARACTERS, optional=True)
    check_time("updated_at", put.updated_at)
    if RESERVED_KEY in put.metadata:
        raise InvalidArgumentError(f"metadata must not have the key {RESERVED_KEY!r}")
    return put


UserIdType = Literal["string", "int", "bigint"]

_BITS: Final = {"int": 31, "bigint": 63}
_MOST_DIGITS: Final = 20


def check_user_id_type(name: Any) -> UserIdType:
    """Return the option; refuse one that is not valid."""
    return check_choice("user_id_type", name, UserIdType)


def is_user_id(text: str, users: UserIdType) -> bool:
    """Return whether a column of the type holds the id, and gives back the same text."""
    if users == "string":
        return True
    return _is_number(text) and str(int(text)) == text and _fits(int(text), users)


def require_user_id(text: str | None, users: UserIdType) -> None:
    """Refuse an id that the column for users' ids cannot hold."""
    if text is not None and not is_user_id(text, users):
        raise InvalidArgumentError(
            f"user_id {text!r:.80} is not a number of the type {users}, which is the type of the "
            "database's users; nothing was written"
        )


def format_user(user_id: object, users: UserIdType) -> str | None:
    """Return a user's id as text.

    Raises:
        InvalidArgumentError: It is not of the type.
    """
    if user_id is None:
        return None
    if users == "string":
        return str(check_text("user_id", user_id))
    number = int(user_id) if isinstance(user_id, str) and _is_number(user_id) else user_id
    if type(number) is not int:
        raise InvalidArgumentError(f"user_id must be of the type {users}, not {user_id!r:.80}")
    if not _fits(number, users):  # too long to write, perhaps
        raise InvalidArgumentError(
            f"user_id must be a number of the type {users}, not a larger one"
        )
    return str(number)


def parse_user(text: str | None, users: UserIdType) -> str | int | None:
    """Return an id of ``format_user`` as the caller's type."""
    if text is None or users == "string" or not _is_number(text):
        return text
    return int(text)


def _fits(number: int, users: UserIdType) -> bool:
    return bool(-(2 ** _BITS[users]) <= number < 2 ** _BITS[users])


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
