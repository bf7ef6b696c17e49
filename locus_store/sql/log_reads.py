"""Reads of message logs in SQL. The statement of a page is compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam as bind

from locus_store.sql.columns.compiled import Compiled
from locus_store.sql.columns.dialect_columns import SharedJson, unescape_text
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.statements import Statements, is_live
from locus_store.sql.threads.thread_rows import MESSAGE, make_message
from locus_store.types import ArchivedMessage
from locus_store.types.arguments import MAX_COUNT
from locus_store.types.logs import LogsWanted, PackedContents
from locus_store.types.messages import LogInfo, LogRead, LogWanted, make_unknown_message_error
from locus_store.types.thread_info import is_user_id

CONTENT: Final = ("message_id", "role", "metadata", "text", "payload", "digest")
"""The columns of a message of ``PackedContents``."""

LOG: Final = ("revision", "message_count", "changed_at")
"""The columns of a log, without its name."""

_OF_LOG: Final = 2 + len(LOG)
"""Columns of a log with its name, which come first in the rows of ``find_heads``."""

Messages = Literal["all", "newest"]
"""The messages of each log that a list reads."""

SCANNED: Final = 1000
"""Messages that a search reads at a time."""

LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


_CONDITIONS: Final = ("after", "message_id", "role", "since", "until")


class PageShape(NamedTuple):
    """The form of the statement that reads a page; the values are its parameters."""

    is_newest: bool
    is_limited: bool
    given: frozenset[str]
    """The conditions that are not ``None``."""

    @classmethod
    def make(cls, request: LogWanted) -> PageShape:
        """Return the form of a read."""
        is_limited = request.limit is not None or request.offset > 0
        given = (name for name in _CONDITIONS if getattr(request, name) is not None)
        return cls(request.newest, is_limited, frozenset(given))


def look(reads: Reads, request: LogWanted) -> LogRead | None:
    """See ``BaseMessageLog.look``; one statement, whose plan reads no other messages."""
    page = _compile_page(reads.sql, PageShape.make(request))
    rows = page.fetch_rows(reads.connection, _bind(reads, request))
    if request.after is not None and (not rows or rows[0][-1] is None):
        raise make_unknown_message_error(request)
    if not rows:
        return None
    first, end = len(LOG), len(LOG) + len(MESSAGE) - 1
    found = ((request.namespace, *row[first:end]) for row in rows if row[first] is not None)
    read = [make_message(row, request.thread_id) for row in found]
    return LogRead(_make_info(request.thread_id, request.namespace, *rows[0][:first]), read)


@lru_cache(maxsize=256)
def _compile_page(sql: Statements, shape: PageShape) -> Compiled:
    """Return the statement of a page: ``LOG``, ``MESSAGE[1:]``, and the cursor's sequence."""
    t, page = sql.tables, _select_page(sql.tables, shape).subquery("page")
    query = _log(t).add_columns(*(page.c[name] for name in MESSAGE[1:]))
    joined = query.outerjoin(page, page.c.thread == t.logs.c.thread)
    if "after" in shape.given:
        joined = joined.add_columns(_select_place(t).label("place"))
    return Compiled(joined.order_by(page.c.sequence), sql.dialect)


def look_at_contents(reads: Reads, request: LogWanted) -> PackedContents:
    """Return what the contents of a page are read from; see ``BaseMessageLog.contents``."""
    columns = _compile_contents(reads.sql, PageShape.make(request))
    found = PackedContents(*columns.fetch_columns(reads.connection, _bind(reads, request)))
    if any(found.texts):
        texts = [None if text is None else unescape_text(text) for text in found.texts]
        return found._replace(texts=texts)
    return found


@lru_cache(maxsize=64)
def _compile_contents(sql: Statements, shape: PageShape) -> Compiled:
    t, page = sql.tables, _select_page(sql.tables, shape).subquery("page")
    columns = {name: page.c[name] for name in CONTENT}
    columns["metadata"] = sa.type_coerce(page.c.metadata, SharedJson()).label("metadata")
    query = sa.select(*columns.values()).order_by(page.c.sequence)
    return Compiled(query.where(page.c.thread == _select_live_thread(t)), sql.dialect)


def search(reads: Reads, request: LogWanted) -> LogRead | None:
    """Return the messages that match a search, which is compared in Python; on one snapshot."""
    t, values = reads.tables, _bind(reads, request)
    rows = reads.connection.execute(_log(t), values).all()
    is_known = request.after is None or (
        reads.connection.execute(sa.select(_select_place(t)), values).scalar() is not None
    )
    if not is_known:
        raise make_unknown_message_error(request)
    if not rows:
        return None
    scanned = _scan(reads, request)
    found = (message for message in scanned if request.takes(message, reads.max_state_bytes))
    info = _make_info(request.thread_id, request.namespace, *rows[0])
    return LogRead(info, request.cut_page(found))


def _scan(reads: Reads, request: LogWanted) -> Iterator[ArchivedMessage]:
    sequence, shape = reads.tables.messages.c.sequence, PageShape.make(request)
    query = _select_messages(reads.tables, shape).order_by(sequence)
    options = {"yield_per": SCANNED}
    with reads.connection.execute(query, _bind(reads, request), execution_options=options) as rows:
        for row in rows:
            yield make_message((request.namespace, *row[1:]), request.thread_id)


def _bind(reads: Reads, request: LogWanted) -> dict[str, Any]:
    """Return the parameters of the statements below."""
    return {
        "tenant": reads.tenant,
        "thread_id": request.thread_id,
        "namespace": request.namespace,
        **{name: getattr(request, name) for name in _CONDITIONS},
        "limit": MAX_COUNT if request.limit is None else request.limit,
        "offset": request.offset,
    }


def _select_page(t: Tables, shape: PageShape) -> sa.Select[Any]:
    sequence, page = t.messages.c.sequence, _select_messages(t, shape)
    if not shape.is_limited:
        return page
    ordered = page.order_by(sequence.desc() if shape.is_newest else sequence)
    limit, offset = (bind(name, type_=sa.Integer()) for name in ("limit", "offset"))
    return ordered.limit(limit).offset(offset)


def _select_messages(t: Tables, shape: PageShape) -> sa.Select[Any]:
    """Return a query for the messages of a log: the thread's number, then ``MESSAGE[1:]``."""
    c = t.messages.c
    thread = sa.select(t.threads.c.thread).where(*_is_thread(t)).scalar_subquery()
    query = sa.select(c.thread, *(c[name] for name in MESSAGE[1:]))
    query = query.where(c.thread == thread, c.namespace == bind("namespace"))
    conditions = {
        "after": c.sequence > _select_place(t),
        "message_id": c.message_id == bind("message_id"),
        "role": c.role == bind("role"),
        "since": c.created_at >= bind("since"),
        "until": c.created_at <= bind("until"),
    }
    return query.where(*(conditions[name] for name in sorted(shape.given)))


def _select_place(t: Tables) -> sa.ScalarSelect[int]:
    """Return the sequence of the message that a page continues behind."""
    messages = t.messages.alias("places")
    return (
        sa.select(messages.c.sequence)
        .join(t.threads, t.threads.c.thread == messages.c.thread)
        .where(*_is_thread(t), is_live(t))
        .where(messages.c.namespace == bind("namespace"), messages.c.message_id == bind("after"))
        .correlate(None)
        .scalar_subquery()
    )


def find_logs(reads: Reads, request: LogsWanted) -> list[LogInfo]:
    """See ``BaseMessageLog.find_logs``."""
    return [_make_info(*row) for row in _list(reads, request, None)]


def find_heads(reads: Reads, request: LogsWanted) -> list[LogRead]:
    """See ``BaseMessageLog.find_heads``; one statement."""
    rows = _list(reads, request, "all" if request.whole else "newest")
    return [_make_log_read([*its_rows]) for _, its_rows in groupby(rows, itemgetter(0, 1))]


def _make_log_read(rows: Sequence[Sequence[Any]]) -> LogRead:
    info = _make_info(*rows[0][:_OF_LOG])
    messages = (row[_OF_LOG:] for row in rows)
    return LogRead(info, [make_message(it, info.thread_id) for it in messages if it[0] is not None])


def _list(reads: Reads, request: LogsWanted, messages: Messages | None) -> list[tuple[Any, ...]]:
    """Return the rows of a list; the form of its statement follows from what is wanted."""
    if request.user_id is not None and not is_user_id(request.user_id, reads.tables.user_id_type):
        return []  # the column cannot hold it
    after_thread, after_namespace = request.after or (None, None)
    wanted = {
        "thread_id": request.thread_id,
        "prefix": request.prefix or None,
        "beyond": find_prefix_end(request.prefix),
        "namespace": request.namespace,
        "user_id": request.user_id,
        "after_thread": after_thread,
        "after_namespace": after_namespace or None,
    }
    names = frozenset(name for name, value in wanted.items() if value is not None)
    values = {**wanted, "tenant": reads.tenant, "limit": request.limit}
    return _compile_list(reads.sql, names, messages).fetch_rows(reads.connection, values)


@lru_cache(maxsize=256)
def _compile_list(sql: Statements, names: frozenset[str], messages: Messages | None) -> Compiled:
    """Return the statement of a list: a log with its name, and its messages if wanted."""
    t = sql.tables
    if messages is None:
        return Compiled(_select_matching(t, names), sql.dialect)
    others = t.messages.alias("others")
    page = _select_matching(t, names).add_columns(t.logs.c.thread).subquery("page")
    of_log = (page.c[name] for name in ("thread_id", "log_namespace", *LOG))
    is_its = others.c.thread == page.c.thread, others.c.namespace == page.c.log_namespace
    newest = sa.select(sa.func.max(others.c.sequence)).where(*is_its).scalar_subquery()
    is_wanted = sa.and_(
        t.messages.c.thread == page.c.thread,
        t.messages.c.namespace == page.c.log_namespace,
        sa.true() if messages == "all" else t.messages.c.sequence == newest,
    )
    query = sa.select(*of_log, *(t.messages.c[name] for name in MESSAGE))
    query = query.select_from(page.outerjoin(t.messages, is_wanted))
    is_named = sa.case((page.c.log_namespace == "", 0), else_=1)
    order = page.c.thread_id, is_named, page.c.log_namespace, t.messages.c.sequence
    return Compiled(query.order_by(*order), sql.dialect)


def _select_matching(t: Tables, names: frozenset[str]) -> sa.Select[Any]:
    """Return a query for the logs that match; ``names``: of the values that are compared."""
    thread_id, namespace = t.threads.c.thread_id, t.logs.c.namespace
    columns = (thread_id, namespace.label("log_namespace"), *(t.logs.c[name] for name in LOG))
    # Not by the bytes alone: those of the root sort behind those of names that begin with " ".
    is_named = sa.case((namespace == "", 0), else_=1)
    query = _select_logs(t, *columns).order_by(thread_id, is_named, namespace)
    conditions = {
        "thread_id": t.logs.c.thread == _select_live_thread(t),
        "prefix": thread_id >= bind("prefix"),
        "beyond": thread_id < bind("beyond"),
        "namespace": namespace == bind("namespace"),
        "user_id": t.threads.c.user_id == bind("user_id"),
    }
    query = query.where(*(it for name, it in conditions.items() if name in names))
    if "after_thread" in names:
        is_later: sa.ColumnElement[bool] = sa.true()
        if "after_namespace" in names:  # else it is behind the root
            is_later = namespace > bind("after_namespace")
        is_named_later = sa.and_(namespace != "", is_later)
        is_behind = sa.or_(thread_id > bind("after_thread"), is_named_later)
        query = query.where(thread_id >= bind("after_thread"), is_behind)
    return query.limit(bind("limit", type_=sa.Integer()))


def _make_info(
    thread_id: str, namespace: str, revision: int, count: int, changed_at: datetime
) -> LogInfo:
    return LogInfo(
        thread_id=thread_id,
        namespace=namespace,
        revision=revision,
        count=count,
        changed_at=changed_at,
    )


def find_prefix_end(prefix: str) -> str | None:
    """Return the least text above all that begin with the prefix; ``None`` if there is none."""
    kept = prefix.rstrip(chr(LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _select_logs(t: Tables, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a query for columns of the logs of a tenant's live threads."""
    return (
        sa.select(*columns)
        .join_from(t.threads, t.logs, t.logs.c.thread == t.threads.c.thread)
        .where(t.threads.c.tenant == bind("tenant"), is_live(t))
    )


def _log(t: Tables) -> sa.Select[Any]:
    """Return a query for ``LOG`` of one log.

    Without a join: a plan that PostgreSQL made when the tables were small would read all logs.
    """
    query = sa.select(*(t.logs.c[name] for name in LOG))
    return query.where(
        t.logs.c.thread == _select_live_thread(t), t.logs.c.namespace == bind("namespace")
    )


def _select_live_thread(t: Tables) -> sa.ScalarSelect[int]:
    return sa.select(t.threads.c.thread).where(*_is_thread(t), is_live(t)).scalar_subquery()


def _is_thread(t: Tables) -> tuple[sa.ColumnElement[bool], ...]:
    return t.threads.c.tenant == bind("tenant"), t.threads.c.thread_id == bind("thread_id")
