"""The stored sizes of versions, and the list of threads with what a list shows of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from locus_store import versions
from locus_store.errors import InvalidArgumentError
from locus_store.types import ArchivedMessage
from locus_store.types.arguments import check_text, compile_thread_pattern
from locus_store.values.filters import check_key, has_value, is_found
from locus_store.values.text import query_words
from locus_store.versions import logs, turns
from locus_store.versions.histories import History
from locus_store.versions.lines import IS_SIDE_BRANCH, SIDE_BRANCH
from locus_store.versions.threads import Thread

INTERRUPT: Final = "__interrupt__"
"""LangGraph's channel of a task that waits for an answer."""


RECORD_BYTES: Final = 8_000

SOURCES: Final = {"source", "step"}
"""Metadata that LangGraph gives each of its versions."""

GRAPH_SOURCES: Final = ("input", "loop", "update", "fork")
"""The values of ``source`` there."""

SOON: Final = timedelta(days=1)

KINDS: Final = {"graph": "graphs", "agent": "agents", "session": "sessions", "log": "message logs"}
"""The kinds of threads, by the program that saves them."""

BADGES: Final = {
    "interrupted": "interrupted: waits for an answer",
    "turn": "running turn",
    "expires": "expires within a day",
    "conflict": "conflict: an open side branch",
}
"""Reasons to look at a thread. A conflict is open while its side branch is a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatus:
    """A thread in a list."""

    thread_id: str
    active_at: datetime | None = None
    place: str | None = None
    """The beginning of the next page, for ``StatusesWanted.place``."""

    badges: Sequence[str] = ()
    """Of ``BADGES``."""

    checkpoint_id: str | None = None
    """Of the head of the root namespace; ``None``: there is none, or it was not read."""

    metadata: Mapping[str, Any] | None = None
    """Of the head of the root namespace; ``None``: there is none."""

    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of the head."""

    digest: bytes | None = None
    """Of the head, as it is stored; ``None``: there is none, or it was not read."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the thread itself."""

    user_id: str | None = None
    """The registered user."""

    expires_at: datetime | None = None
    record: bytes | None = None
    """The record of the newest save; ``None``: not known, or longer than ``RECORD_BYTES``."""

    messages: int | None = None
    """Messages in all logs; ``None``: there is no log."""

    message: ArchivedMessage | None = None
    """The newest message of the log that changed last; ``None``: there is none, or it is longer
    than ``RECORD_BYTES``."""

    versions: int | None = None
    """Visible versions in all namespaces; ``None``: not known."""

    stored_bytes: int | None = None
    """Of the versions and messages; ``None``: not known."""

    found: tuple[str, str] | None = None
    """The version with most of the wanted words, and its text around the first of them."""

    @property
    def kind(self) -> str:
        """Return what saves the thread, of ``KINDS``."""
        if self.metadata is not None:
            return "graph" if self.metadata.get("source") in GRAPH_SOURCES else "agent"
        return "session" if self.user_id is not None else "log"

    def with_hit(self, hit: Any) -> ThreadStatus:
        """Return it with the ``checkpoint_id`` and ``snippet`` of a hit, if there is one."""
        return replace(self, found=hit and (hit.checkpoint_id, hit.snippet))

    def __str__(self) -> str:
        noun = "message" if self.messages == 1 else "messages"
        shown = {"turn": "turn held"}
        found = [shown.get(it, it) for it in BADGES if it in self.badges and it != "expires"]
        return ", ".join(
            [*found, *([] if self.messages is None else [f"{self.messages:,} {noun}"])]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusesWanted:
    """The conditions of a list, all of which a thread must meet.

    Raises:
        InvalidArgumentError: An id, a pattern, a key or a name is not valid.
    """

    limit: int
    place: str | None = None
    """Of the last thread of the page before."""

    thread_ids: Sequence[str] | None = None
    pattern: str = "*"
    """Shell-style, of the thread's id."""

    user_id: str | None = None
    """Registered to the user, or with this ``user_id`` in its metadata or that of the head."""

    metadata: tuple[str, Any] | None = None
    """Key and value in the metadata or labels of the head, or in that of the thread."""

    kind: str | None = None
    """Of ``KINDS``."""

    badge: str | None = None
    """Of ``BADGES``."""

    since: datetime | None = None
    """The last activity, inclusive, as ``until``."""

    until: datetime | None = None
    text: str | None = None
    """All its words are in visible versions of the root namespace, as ``find`` compares them."""

    def __post_init__(self) -> None:
        compile_thread_pattern(self.pattern)
        if self.text is not None:
            query_words(self.text)
        for thread_id in self.thread_ids or ():
            check_text("thread_id", thread_id)
        check_text("user_id", self.user_id, optional=True)
        if self.metadata is not None:
            check_key(self.metadata[0])
        for name, given, known in (("kind", self.kind, KINDS), ("badge", self.badge, BADGES)):
            if given is not None and given not in known:
                raise InvalidArgumentError(
                    f"{name}={given[:40]!r} must be one of {', '.join(known)}"
                )

    def takes(self, status: ThreadStatus) -> bool:
        """Return whether a thread meets the conditions; ``limit`` and ``place`` are none."""
        at = status.active_at
        user = self.user_id
        return (
            (self.thread_ids is None or status.thread_id in self.thread_ids)
            and (self.pattern == "*" or self._matches(status.thread_id))
            and (user in {None, status.user_id} or _has(status, "user_id", user))
            and (self.metadata is None or _has(status, *self.metadata))
            and self.kind in {None, status.kind}
            and (self.badge is None or self.badge in status.badges)
            and (at is None or self.since is None or at >= self.since)
            and (at is None or self.until is None or at <= self.until)
            and (self.text is None or status.found is not None)
        )

    def _matches(self, thread_id: str) -> bool:
        return compile_thread_pattern(self.pattern).match(thread_id) is not None


def _has(status: ThreadStatus, key: str, value: Any) -> bool:
    head = status.metadata or {}
    return is_found(head, status.labels, key, value) or has_value(status.facts, key, value)


def parse_place(place: str) -> tuple[datetime, str]:
    """Return the time and the name in ``StatusesWanted.place``; refuse anything else."""
    text, _, name = place.partition("/")
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC), name
    raise InvalidArgumentError(f"after={place[:80]!r} does not name a place in a list of threads")


def measure_message(message: ArchivedMessage) -> int:
    """Return about how many bytes a message takes."""
    return len(message.payload or b"") + len(message.text or "")


def make_status(thread: Thread) -> ThreadStatus:
    """Return what a list shows of a thread, from the part of it that is in memory."""
    root = thread.find_history("")
    head = root.get_row(root.line.head or 0) if root else None
    name = head.record.checkpoint_id if head else ""
    writes = root.get_writes(name).values() if root else ()
    now = datetime.now(UTC)
    payload = head.payload if head else b""
    counts = [info.count for it in thread.logs if (info := logs.find_info(thread, it))]
    badges = {
        "interrupted": any(it.write.channel == INTERRUPT for it in writes),
        "turn": turns.get_held(thread.tickets, now) is not None,
        "expires": thread.expires_at is not None and thread.expires_at < now + SOON,
        "conflict": root is not None and _has_conflict(root),
    }
    return ThreadStatus(
        thread_id=thread.thread_id,
        active_at=thread.active_at,
        place=f"{thread.active_at.isoformat()}/{thread.thread_id}",
        badges=[it for it, is_so in badges.items() if is_so],
        checkpoint_id=name or None,
        metadata=head.record.metadata if head else None,
        labels=head.record.labels if head else {},
        digest=head.record.digest if head else None,
        facts=thread.metadata,
        user_id=thread.user_id,
        expires_at=thread.expires_at,
        record=payload if 0 < len(payload) <= RECORD_BYTES else None,
        messages=sum(counts) if counts else None,
        message=_find_newest_message(thread),
        versions=sum(len(it.list_visible()) for it in thread.histories.values()),
    )


def _find_newest_message(thread: Thread) -> ArchivedMessage | None:
    """Return the newest message of the log that changed last; of several, of the first by name.

    ``None``: there is none, or it is too long for a list.
    """
    by_name = sorted(thread.logs.values(), key=lambda it: it.namespace)
    last = max(by_name, key=lambda it: it.changed_at, default=None)
    messages = logs.select_namespace(thread, last.namespace) if last else []
    newest = max(messages, key=lambda it: it.sequence, default=None)
    return newest if newest is not None and measure_message(newest) <= RECORD_BYTES else None


def _has_conflict(history: History) -> bool:
    """Return whether a version that lost a conflict is a leaf beside the head.

    Versions in segments are not read.
    """
    line, (_, read) = history.line, next(history.iterate_parts())
    records = [row.record for at, row in read().items() if versions.is_visible(line, at)]
    leaves = {it.sequence for it in records} - {line.head, *(it.parent for it in records)}
    labels = [it.labels for it in records if it.sequence in leaves]
    return any(it.get(SIDE_BRANCH) == IS_SIDE_BRANCH for it in labels)


class ListsStatuses(ABC):
    """A backend that lists threads by several conditions in one pass over what it stores."""

    @abstractmethod
    async def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        """Return the threads that meet the conditions, the most recently active first.

        Raises:
            InvalidArgumentError: ``place`` does not name a place.
        """


class MeasuresVersions(ABC):
    """A backend that knows the sizes of versions without reading their payloads."""

    @abstractmethod
    async def measure_versions(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        """Return the stored bytes of the versions from sequence ``first`` to ``last``.

        Returns:
            Length of each version's payload, by its sequence, hidden versions among them.
        """
