"""Statements for one version, the head of a line or one of an id, and for records of a line."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy import bindparam as bind

from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.pending import name_parameters
from locus_store.sql.threads.statements import (
    VERSION,
    is_head,
    is_live_line,
    list_segment_columns,
    make_same_thread_condition,
    record_columns,
    select_live_line,
)

Which: TypeAlias = Literal["id", "head"]


def select_whole_version(t: Tables, which: Which) -> sa.Select[Any]:
    """Return a query for a visible version, with a row per payload, or one row without payloads.

    Where a known version is in its chain, up to the version itself, the payloads after that one
    are returned, and its sequence as ``basis``. A segment is in the row of the last of its records
    that is not behind the version.

    Args:
        t: The tables.
        which: The one of an id, or the head.
    """
    lines, mine = t.lines, t.checkpoints
    names = ("heads", "parents", "records", "bases")
    heads, parents, records, bases = (mine.alias(it) for it in names)
    is_basis = sa.and_(
        bases.c.line == mine.c.line,
        bases.c.line == bind("known_line"),
        bases.c.sequence == bind("known_sequence"),
        bases.c.digest == bind("known_digest"),
        bases.c.chain == mine.c.chain,
        bases.c.sequence <= mine.c.sequence,
    )
    is_of_chain = sa.and_(
        records.c.line == mine.c.line,
        records.c.chain == mine.c.chain,
        records.c.sequence <= mine.c.sequence,
        records.c.sequence >= sa.func.coalesce(bases.c.sequence + 1, mine.c.chain),
    )
    segments, is_itself = t.segments, records.c.sequence == mine.c.sequence
    is_segment = sa.and_(
        segments.c.line == records.c.line,
        segments.c.chain == records.c.chain,
        segments.c.first <= records.c.sequence,
        segments.c.last >= records.c.sequence,
        segments.c.last <= sa.case((is_itself, lines.c.last_sequence), else_=records.c.sequence),
    )
    has_some = segments.c.last.is_not(None), records.c.payload.is_not(None)
    is_needed = sa.or_(records.c.sequence.is_(None), is_itself, *has_some)
    return (
        sa.select(
            *(lines.c.line, lines.c.head, heads.c.digest.label("head_digest")),
            *(mine.c[name] for name in VERSION),
            parents.c.checkpoint_id.label("parent_id"),
            *(bases.c.sequence.label("basis"), records.c.sequence.label("at"), records.c.payload),
            *list_segment_columns(segments.c),
        )
        .select_from(lines)
        .join(t.threads, make_same_thread_condition(t))
        .join(mine, _is_wanted(t, which))
        .join(heads, is_head(t, heads))
        .outerjoin(parents, _is_parent(t, parents))
        .outerjoin(bases, is_basis)
        .outerjoin(records, is_of_chain)
        .outerjoin(segments, is_segment)
        .where(*is_live_line(t), is_needed)
        .order_by(records.c.sequence)
    )


def select_lone_version(t: Tables, which: Which) -> sa.Select[Any]:
    """Return a query for a visible version without payloads.

    Its columns are those of the version behind its line, its chain and parent, the head, and the
    head's digest.

    Args:
        t: The tables.
        which: The one of an id, or the head.
    """
    lines, mine = t.lines, t.checkpoints
    heads, parents = (mine.alias(it) for it in ("heads", "parents"))
    columns = *(mine.c[name] for name in VERSION), parents.c.checkpoint_id.label("parent_id")
    place = mine.c.chain, mine.c.parent, lines.c.head, heads.c.digest.label("head_digest")
    return (
        sa.select(lines.c.line, *columns, *place)
        .select_from(lines)
        .join(t.threads, make_same_thread_condition(t))
        .join(mine, _is_wanted(t, which))
        .join(heads, is_head(t, heads))
        .outerjoin(parents, _is_parent(t, parents))
        .where(*is_live_line(t))
    )


def select_measured_head(t: Tables) -> sa.Select[Any]:
    """Return ``select_lone_version`` of the head, before the bytes of its pending writes."""
    c, mine = t.writes.c, t.checkpoints.c
    is_its = c.line == mine.line, c.checkpoint_id == mine.checkpoint_id
    size = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(c.payload)), 0)).where(*is_its)
    return select_lone_version(t, "head").add_columns(size.correlate(t.checkpoints).label("size"))


def select_line_beside(t: Tables) -> sa.Select[Any]:
    """Return ``select_live_line``, and a checkpoint's record and whether it has writes."""
    its = [
        sa.and_(table.c.line == t.lines.c.line, table.c.checkpoint_id == bind("checkpoint_id"))
        for table in (t.writes, t.checkpoints)
    ]
    has_writes = sa.case((sa.exists().where(its[0]).correlate(t.lines), 1), else_=0)
    columns = has_writes, *record_columns(t.checkpoints)
    return select_live_line(t).outerjoin(t.checkpoints, its[1]).add_columns(*columns)


def _is_wanted(t: Tables, which: Which) -> sa.ColumnElement[bool]:
    """Return the condition that joins a line to its head, or to the visible version of an id."""
    lines, mine = t.lines, t.checkpoints
    is_head, of_line = mine.c.sequence == lines.c.head, mine.c.line == lines.c.line
    if which == "head":
        return sa.and_(of_line, is_head)
    is_visible = sa.or_(mine.c.sequence >= lines.c.floor, is_head)
    return sa.and_(of_line, mine.c.checkpoint_id == bind("checkpoint_id"), is_visible)


def _is_parent(t: Tables, parents: sa.FromClause) -> sa.ColumnElement[bool]:
    mine = t.checkpoints
    return sa.and_(parents.c.line == mine.c.line, parents.c.sequence == mine.c.parent)


def select_newest(t: Tables) -> sa.Select[Any]:
    """Return the query for the sequence of a line's newest record, behind ``offset`` of them."""
    c = t.checkpoints.c
    its = sa.select(c.sequence).where(c.line == bind("line")).order_by(c.sequence.desc())
    return its.limit(1).offset(bind("offset"))


def select_below(t: Tables) -> sa.Select[Any]:
    """Return the query for ``limit`` sequences of a line below one, the oldest first."""
    c = t.checkpoints.c
    its = sa.select(c.sequence).where(c.line == bind("line"), c.sequence < bind("sequence"))
    return its.order_by(c.sequence).limit(bind("limit"))


def select_children(t: Tables, size: int) -> sa.Select[Any]:
    """Return the query for the records of a line that have one of so many parents."""
    c = t.checkpoints.c
    parents = c.parent.in_(name_parameters("parent", size))
    return sa.select(*record_columns(t.checkpoints)).where(c.line == bind("line"), parents)


def update_records(t: Tables, size: int, *names: str) -> sa.Update:
    """Return the change of columns of so many records of a line."""
    return t.checkpoints.update().where(*is_record(t, size)).values({it: bind(it) for it in names})


def delete_records(t: Tables, size: int) -> sa.Delete:
    """Return the deletion of so many records of a line."""
    return t.checkpoints.delete().where(*is_record(t, size))


def delete_writes_on(t: Tables, size: int) -> sa.Delete:
    """Return the deletion of the pending writes on so many records of a line."""
    its = sa.select(t.checkpoints.c.checkpoint_id).where(*is_record(t, size))
    c = t.writes.c
    return t.writes.delete().where(c.line == bind("of_line"), c.checkpoint_id.in_(its))


def is_record(t: Tables, size: int) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of so many records of a line."""
    c = t.checkpoints.c
    return c.line == bind("of_line"), c.sequence.in_(name_parameters("sequence", size))
