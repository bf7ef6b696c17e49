"""Lists of message logs: their criteria, and those of whole logs."""

from __future__ import annotations

from dataclasses import dataclass

from locus_store.types.arguments import check_limit, check_names, check_text, checked_user
from locus_store.types.messages import LogName, LogWanted, log_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsWanted:
    """The criteria of a list of logs, ordered by thread id and namespace (code points)."""

    thread_id: str | None = None
    """Of this thread only."""

    prefix: str = ""
    """Of threads whose ids begin with it."""

    namespace: str | None = None
    """Of this namespace only."""

    user_id: str | None = None
    """Of this user's threads only."""

    limit: int
    after: LogName | None = None
    whole: bool = False
    """Of ``find_heads``: each log with all its messages, instead of the newest."""

    def takes(self, thread_id: str, namespace: str, user_id: str | None) -> bool:
        """Return whether a log matches: the reference for every backend."""
        is_behind = self.after is None or (thread_id, namespace) > self.after
        is_thread = self.thread_id in {None, thread_id} and thread_id.startswith(self.prefix)
        is_theirs = self.user_id in {None, user_id}
        return is_behind and is_thread and is_theirs and self.namespace in {None, namespace}


def head_of(thread_id: str, namespace: str, *, whole: bool) -> LogWanted:
    """Return the criteria of the newest message of a log, or of all."""
    limit = None if whole else 1
    return LogWanted(thread_id=thread_id, namespace=namespace, limit=limit, newest=not whole)


def whole_log(thread_id: str, namespace: str, newest: int | None) -> LogWanted:
    """Return the criteria of a log, or of its newest messages."""
    check_names(thread_id, namespace)
    limit = None if newest is None else check_limit(newest, "newest")
    is_newest = newest is not None
    return LogWanted(thread_id=thread_id, namespace=namespace, limit=limit, newest=is_newest)


def logs_wanted(
    thread_id: str | None,
    *,
    prefix: str,
    namespace: str | None,
    user_id: str | None,
    limit: int,
    after: LogName | None,
) -> LogsWanted:
    """Return the criteria of a list, from the arguments of ``BaseMessageLog.logs``."""
    if thread_id is not None:
        check_text("thread_id", thread_id)
    check_text("prefix", prefix, minimum=0)
    if namespace is not None:
        check_text("namespace", namespace, minimum=0)
    return LogsWanted(
        thread_id=thread_id,
        prefix=prefix,
        namespace=namespace,
        user_id=checked_user(user_id),
        limit=check_limit(limit),
        after=None if after is None else log_name(after),
    )
