"""The records that cross the interfaces: never changed, backend-free, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from locus_store.errors import UnsupportedError
from locus_store.runtime.notebooks import Tabular

if TYPE_CHECKING:
    from locus_store.types.thread_info import PutThread
    from locus_store.values.frames import Change, DigestTree

OnConflict = Literal["raise", "branch", "overwrite"]
"""The reaction of a save to another writer's save since the load."""

MustExist = Literal["thread", "checkpoint", "task"]
"""The record without which pending writes are refused: their thread, or their checkpoint."""


@dataclass(frozen=True)
class CheckpointerCapabilities:
    """The operations that a checkpointer supports.

    An operation whose flag is off raises ``UnsupportedError``.
    """

    search: bool = False
    """Text search across threads: ``search``."""

    metadata_query: bool = False
    """``query_by_metadata`` and ``get_metadata``."""

    vacuum: bool = False
    """Removal of versions older than a number of days: ``vacuum``."""

    branching: bool = False
    """Copying a thread with all its versions: ``copy_thread``."""

    ttl: bool = False
    """Threads may expire: ``ttl_seconds`` of the factory, and ``expire``."""

    list_threads: bool = False
    """``list_threads``."""

    list_with_metadata: bool = False
    """``list_with_metadata``."""

    persistent_checkpoint_ids: bool = False
    """A checkpoint id given out by one process names the same version in another."""

    tenants: bool = False
    """Several tenants share the storage: ``for_tenant`` and ``tenants``."""

    messages: bool = False
    """Message logs: ``open_message_log``."""

    turns: bool = False
    """One turn of a thread at a time: ``turn``, ``busy`` and ``turns``."""

    quotas: bool = False
    """Limits of a tenant: ``get_quota`` and ``set_quota``."""

    effects: bool = False
    """Calls of tools that run once: ``effect``, ``effects`` and ``resolve_effect``."""


def make_unsupported_error(name: str, capabilities: object, capability: str) -> UnsupportedError:
    """Return the error of a class that lacks the method of a capability, or ``delete``.

    Args:
        name: The class.
        capabilities: Its capabilities, ours or the Locus SDK's.
        capability: The one that is asked for.
    """
    if not hasattr(CheckpointerCapabilities, capability):
        return UnsupportedError(f"{name} has no {capability}() of its own; implement it")
    if getattr(capabilities, capability, False):
        return UnsupportedError(
            f"{name} declares the capability {capability!r} and does not implement it; "
            "implement the method, or do not declare it"
        )
    return UnsupportedError(
        f"{name} does not declare the capability {capability!r}; look at `capabilities` first"
    )


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant that has stored data, and its amount."""

    name: str
    threads: int
    """Live threads, as ``StoresThreads.scan`` lists them."""

    items: int
    """Live items of the store."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The permanent identity of a version, since a caller may reuse checkpoint ids."""

    store: str
    """Identity of the database that counted ``line``; marks of another one are not ours."""

    line: int
    """Surrogate key of the line; never given to another incarnation of the thread."""

    sequence: int
    """The server's order of the versions in the line; starts at 1."""

    digest: bytes = field(repr=False)
    """16-byte digest of the version's state: a restored backup may count a sequence again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The assumptions of a save about its line; the backend decides whether they still hold."""

    made_from: Mark | None
    """The version that the state was made from; ``None``: there was no such thread."""

    head: Mark | None
    """The line's head when that version was loaded; differs from it in a declared rewind."""


@dataclass(slots=True, kw_only=True)
class Save:
    """One version to write; validated and encoded before a connection is taken. Never changed."""

    thread_id: str
    namespace: str = ""
    checkpoint_id: str
    change: Change
    """The state: its digest, the frames that change ``basis`` into it, and its whole form."""

    basis: Mark | None = None
    """The version that ``change.frames`` apply to; ``None``: there is the whole form only."""

    expected: Expected | None = None
    """The expected head; ``None``: append to any head."""

    parent_id: str | None = None
    """The explicit parent. ``expected`` identifies it exactly, if it is of this database."""

    forks: bool = True
    """``parent_id`` may be another version than the head: a declared fork. Without this, another
    head is a conflict."""

    is_root: bool = False
    """The version has no parent, whatever the head is. Excludes the three above."""

    thread_must_exist: bool = False
    """A save of a thread that does not exist raises ``ConflictError``; see ``has_thread``."""

    on_conflict: OnConflict = "raise"
    writer: str | None = None
    """The id of the load that the state descends from (``LoadedVersion.load_id``). A head that a
    save with the same id made is the caller's own work, so there is no conflict."""

    run: str | None = None
    """The key of the agent's run. It identifies own work if there is no ``writer``."""

    side_parent: Mark | None = None
    """The run's last side branch after a conflict, which its next save continues."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the state itself has (``agent_id``, ``tags``); queryable like metadata."""

    keep_last: int | None = None
    ttl_seconds: float | None = None
    turn: int | None = None
    """The number of the turn that the save belongs to. Another one, or none, that is held raises
    ``TurnError``."""

    claim: PutThread | None = None
    """Registers the owner of the thread in the same transaction. The thread of another user raises
    ``NotOwnerError``."""

    def with_id(self, checkpoint_id: str) -> Save:
        """Return the same save of a version with another id."""
        return replace(self, checkpoint_id=checkpoint_id)


Outcome = Literal["head", "side", "same"]
"""``head``: the version is the head of its line; ``side``: it is a side branch; ``same``: it was
saved before, by a save that is repeated here."""


class Active(NamedTuple):
    """A thread in a list, with the time of its last activity."""

    thread_id: str
    active_at: datetime
    """Time of its last activity: no version of it is newer."""


class Removed(NamedTuple):
    """The result of removing a thread."""

    existed: bool
    """``False`` where there were only pending writes, or nothing."""

    versions: int
    """The number of versions removed."""


class Vacuumed(NamedTuple):
    """The result of a vacuum."""

    removed: int
    """Versions."""

    skipped: int
    """Threads with old versions that other transactions hold: they stay as they are."""

    unreadable: int = 0
    """Threads with old versions that stay, because what is left would have to be rewritten from
    stored data that is damaged or exceeds ``max_state_bytes``."""

    threads: int = 0
    """Threads that were removed with all they own."""

    messages: int = 0
    """The messages of those threads."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a save."""

    checkpoint_id: str
    """The one asked for, but for a side branch whose id was in use."""

    mark: Mark
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Tabular):
    """One saved version, without its state."""

    COLUMNS = ("checkpoint_id", "parent_id", "thread_id", "namespace", "created_at", "metadata")
    mark: Mark
    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    metadata: dict[str, Any]
    labels: dict[str, Any]
    created_at: datetime
    """The server's clock, timezone-aware."""

    def as_head(self) -> Head:
        """Return the version as the head that lists show for its thread."""
        return Head(
            thread_id=self.thread_id,
            checkpoint_id=self.checkpoint_id,
            metadata=self.metadata,
            updated_at=self.created_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsWanted:
    """The versions that ``ListsVersions.newest`` lists."""

    thread_id: str | None = None
    """``None``: all threads."""

    namespace: str | None = None
    """``None``: all namespaces."""

    checkpoint_id: str | None = None
    """Only the version of this id in each namespace."""

    before: str | None = None
    """Only versions below this one of their namespace; if it has none of this id, smaller ids."""

    metadata: tuple[tuple[str, Any], ...] = ()
    """Keys and values that the metadata has. A hint: others may be listed too."""

    after: Version | None = None
    """Continue behind this one."""

    may_continue: bool = False
    """The caller may ask for what follows, with ``after``. Without it, versions whose times are not
    those of their order, because the server's clock went back, may be missing."""


class LineContents(NamedTuple):
    """The records behind the states of versions of a line, and their pending writes."""

    line: int
    records: list[tuple[int, int, bytes]]
    """As ``StoresThreads.records`` returns them; of other chains too."""

    writes: dict[str, list[PendingWrite]]
    """By checkpoint id, of those that have some, in the order of their tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored version, read by one statement or in one transaction."""

    version: Version
    head: Mark
    """The line's head in the same read; equals ``version.mark`` when the head was read."""

    payloads: list[bytes]
    """The chain's records up to the version, in order; with ``basis`` those after it."""

    basis: Mark | None = None
    """The version that the payloads continue; ``None``: they begin with a whole state."""

    writes: list[PendingWrite] | None = None
    """Pending writes in their order, if they were requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version with its state."""

    version: Version
    state: dict[str, Any]
    head: Mark
    """The line's head in the same read; equals ``version.mark`` when the head was read."""

    writes: list[PendingWrite] | None = None
    """Pending writes in their order, if they were requested."""

    has_escaped: bool = True
    """``False``: ``values.surrogates.restore`` would change nothing in the state."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """A version with its digest tree, as it is kept in memory."""

    version: Version
    snapshot: DigestTree
    head: Mark
    """See ``Snapshot``."""

    writes: list[PendingWrite] | None = None
    """See ``Snapshot``."""

    state: dict[str, Any] | None = None
    """The state, where reading made it: of this object alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A thread with its head, as lists and metadata queries return it."""

    thread_id: str
    checkpoint_id: str
    metadata: dict[str, Any]
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Head):
    """A thread that a search found; the checkpoint is the version that added most words."""

    score: float
    """Greater than 0; higher is better; comparable within one answer only."""

    snippet: str
    """Up to 160 characters around the first word found."""


@dataclass(slots=True)
class PendingWrite:
    """An output of a task, stored before the checkpoint of its step is complete. Never changed."""

    task_id: str
    idx: int
    """Place among the task's writes; below 0: a special channel, whose last write counts."""

    channel: str
    type: str
    """The caller's name for the format of ``payload``."""

    payload: bytes
    task_path: str = ""
    basis: int | None = None
    """Sequence of its checkpoint, if ``payload`` holds frames that change the value of the channel
    there; ``None``: it is whole. Another sequence than that of the checkpoint belongs to an older
    version of the same id, and the write does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRecord:
    """A version as it is stored."""

    sequence: int
    chain: int
    """Sequence of the chain's first record."""

    parent: int | None
    checkpoint_id: str
    digest: bytes
    metadata: dict[str, Any]
    labels: dict[str, Any]
    created_at: datetime
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedWrite:
    """A pending write, and the checkpoint that it belongs to."""

    checkpoint_id: str
    write: PendingWrite
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLine:
    """A namespace of a thread with all its versions, including those that ``keep_last`` hides."""

    namespace: str
    head: int | None
    """Sequence of the head; ``None``: only pending writes so far."""

    floor: int
    last_sequence: int
    records: list[ArchivedRecord]
    """Ascending by sequence."""

    writes: list[ArchivedWrite]
    """Ordered by checkpoint id, task id and index."""

    segments: list[Any] = field(default_factory=list)
    author: tuple[str | None, str | None] | None = None
    """Both of a move of a SQL database: of records without payloads; writer and run of a line."""


class ArchivedMessage(NamedTuple):
    """One entry of a message log. A tuple: a log of many messages has as many of them."""

    sequence: int
    """The order in its log."""

    message_id: str
    role: str
    metadata: dict[str, Any]
    created_at: datetime
    text: str | None
    payload: bytes | None
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLog:
    """A message log of a thread, without its messages."""

    namespace: str
    revision: int
    last_sequence: int
    changed_at: datetime


FOREVER: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""The end of the time to live of a thread that is stored until it is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedThread:
    """All stored data of a thread, in one consistent read."""

    thread_id: str
    user_id: str | None
    name: str | None
    metadata: dict[str, Any]
    created_at: datetime
    active_at: datetime
    """The last activity, to the minute."""

    expires_at: datetime | None
    """``FOREVER``: never, and ``vacuum`` leaves the thread."""

    lines: list[ArchivedLine]
    """Ordered by namespace."""

    messages: list[ArchivedMessage]
    """Ordered by namespace and sequence."""

    logs: list[ArchivedLog] = field(default_factory=list)
    """Ordered by namespace. Logs of messages that are not among them are derived."""

    def __post_init__(self) -> None:
        newest = {it.namespace: (it.sequence, it.created_at) for it in self.messages}
        derived = {
            name: ArchivedLog(namespace=name, revision=1, last_sequence=at, changed_at=changed_at)
            for name, (at, changed_at) in newest.items()
        }
        logs = derived | {it.namespace: it for it in self.logs}
        object.__setattr__(self, "logs", [logs[name] for name in sorted(logs)])
