"""A plain append as a few statements that need no read in between: one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa

from locus_store import versions
from locus_store.sql.columns.types import after, minute, now
from locus_store.sql.threads.statements import (
    is_expiry_late,
    is_live,
)
from locus_store.versions.renewing import ttl_slack

if TYPE_CHECKING:
    from locus_store.sql.schema.tables import Tables
    from locus_store.types import Save


class Step(NamedTuple):
    """A statement of a plain append."""

    statement: sa.Insert | sa.Update
    must_hit: bool
    """If it affects no row, all is rolled back and the rules decide in another transaction."""


def values_of(save: Save, store: str, tenant: str) -> dict[str, Any] | None:
    """Return the values of the statements; ``None`` for a save that is not a plain append."""
    append = versions.append_of(save, store)
    if append is None or save.keep_last is not None or save.claim is not None:
        return None
    is_first = append.head is None and append.basis is None and not save.thread_must_exist
    if append.line is None and not is_first:
        return None
    head, basis, shape = append.head, append.basis, save.change.shape
    ttl = save.ttl_seconds
    values = {
        "tenant": tenant,
        "store_id": store,
        "thread_id": save.thread_id,
        "namespace": save.namespace,
        "line": append.line,
        "expected": head.sequence if head else None,
        "expected_digest": head.digest if head else None,
        "is_free": int(append.is_free),
        "basis": basis.sequence if basis else None,
        "basis_digest": basis.digest if basis else None,
        "writer": save.writer,
        "run": save.run,
        "checkpoint_id": save.checkpoint_id,
        "digest": shape.digest,
        "added": append.added,
        "most": append.most,
        "metadata": dict(save.metadata),
        "labels": dict(save.labels),
        "ttl": ttl,
        "ttl_and_slack": None if ttl is None else ttl + ttl_slack(ttl),
        "payload": append.payload,
    }
    return {f"its_{name}": value for name, value in values.items()}


def appending(t: Tables, *, is_first: bool, expires: bool) -> list[Step]:
    """Return the statements of a save, in their order.

    Args:
        t: The tables.
        is_first: Of a thread that is not there yet; else onto a line that the caller knows.
        expires: The save has a time to live.
    """
    if is_first:
        steps = [_new_thread(t, expires=expires), _new_line(t), _first_version(t)]
        return [Step(it, must_hit=True) for it in steps]
    return [
        Step(_locked(t), must_hit=True),
        Step(_next_version(t), must_hit=True),
        Step(_moved(t), must_hit=False),
        Step(_touched(t, expires=expires), must_hit=False),
    ]


def made_by(t: Tables) -> sa.Select[Any]:
    """Return the query for the line and the sequence that the statements created."""
    return sa.select(t.lines.c.line, t.lines.c.head).where(_is_ours(t.lines))


def _value(name: str, kind: Any) -> sa.BindParameter[Any]:
    """Return a parameter that shares no column's name: SQLAlchemy would bind it to that column."""
    return sa.bindparam(f"its_{name}", type_=kind)


ZERO: Final = sa.literal_column("0", sa.BigInteger())
ONE: Final = sa.literal_column("1", sa.BigInteger())


def _of(table: sa.Table, *names: str) -> dict[str, Any]:
    return {it: _value(it, table.c[it].type) for it in names}


def _is_ours(table: sa.Table) -> sa.ColumnElement[bool]:
    names = [it for it in ("tenant", "thread_id", "namespace") if it in table.c]
    return sa.and_(*(table.c[name] == value for name, value in _of(table, *names).items()))


def _locked(t: Tables) -> sa.Update:
    """Lock the line's row until the commit."""
    c = t.lines.c
    is_live_thread = sa.exists().where(_is_ours(t.threads), is_live(t)).correlate(None)
    return (
        t.lines.update()
        .where(c.line == _value("line", c.line.type), _is_ours(t.lines), c.head.is_not(None))
        .where(is_live_thread, sa.exists().where(_is_opened(t)).correlate(None), ~_has_index(t))
        .values(updated_at=now())
    )


def _is_opened(t: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that this is the database that was opened."""
    c = t.settings.c
    return sa.and_(
        c.name == sa.literal_column("'store_id'"), c.value == _value("store_id", c.value.type)
    )


def _has_index(t: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that a full-text index exists: these statements do not update it."""
    facts = t.settings.alias("facts")
    made = facts.c.name == sa.literal_column("'full_text_index'")
    return sa.exists().where(made).correlate(None)


def _next_version(t: Tables) -> sa.Insert:
    """Return the insert of the version, if the line is as the caller expects."""
    c = t.lines.c
    number, text = sa.BigInteger(), c.writer.type
    writer, run = _value("writer", text), _value("run", text)
    is_own = sa.or_(c.writer == writer, sa.and_(writer.is_(None), c.run == run))
    is_free = _value("is_free", number) == ONE
    goes_on = sa.and_(
        c.open_chain.is_not(None), c.open_bytes <= _value("most", number), _holds(t, "basis")
    )
    name = _value("checkpoint_id", t.checkpoints.c.checkpoint_id.type)
    others = t.checkpoints.alias("others")
    is_named = sa.exists().where(others.c.line == c.line, others.c.checkpoint_id == name)
    place = {"sequence": c.last_sequence + ONE, "chain": _chain(t), "parent": c.head}
    return _kept(
        t,
        place,
        c.line == _value("line", number),
        sa.or_(is_free, is_own, _holds(t, "expected")),
        sa.or_(_value("basis", number).is_(None), goes_on),
        ~is_named.correlate(t.lines),
    )


def _holds(t: Tables, name: str) -> sa.ColumnElement[bool]:
    """Return the condition that the head is the version of this sequence and digest."""
    heads = t.checkpoints.alias(f"{name}_head")
    sequence = _value(name, heads.c.sequence.type)
    is_there = sa.exists().where(
        heads.c.line == t.lines.c.line,
        heads.c.sequence == sequence,
        heads.c.digest == _value(f"{name}_digest", heads.c.digest.type),
    )
    return sa.and_(t.lines.c.head == sequence, is_there.correlate(t.lines))


def _chain(t: Tables) -> sa.ColumnElement[Any]:
    """Return the chain of the new version, before its line is updated."""
    c = t.lines.c
    is_whole = _value("basis", sa.BigInteger()).is_(None)
    return sa.case((is_whole, c.last_sequence + ONE), else_=c.open_chain)


def _moved(t: Tables) -> sa.Update:
    c = t.lines.c
    is_whole = _value("basis", sa.BigInteger()).is_(None)
    return (
        t.lines.update()
        .where(c.line == _value("line", c.line.type))
        .values(
            head=c.last_sequence + ONE,
            last_sequence=c.last_sequence + ONE,
            open_chain=_chain(t),
            open_bytes=sa.case((is_whole, ZERO), else_=c.open_bytes)
            + _value("added", sa.BigInteger()),
            **_of(t.lines, "writer", "run"),
            updated_at=now(),
        )
    )


def _touched(t: Tables, *, expires: bool) -> sa.Update:
    """Return the update of the thread's activity and expiry."""
    values: dict[str, Any] = {"active_at": minute()}
    is_due = t.threads.c.active_at != minute()
    if expires:
        is_late, most = is_expiry_late(t, "its_")
        is_due = sa.or_(is_due, is_late)
        values["expires_at"] = sa.case((is_late, most), else_=t.threads.c.expires_at)
    return t.threads.update().where(_is_ours(t.threads), is_due).values(**values)


def _new_thread(t: Tables, *, expires: bool) -> sa.Insert:
    columns: dict[str, Any] = {
        **_of(t.threads, "tenant", "thread_id"),
        "created_at": now(),
        "active_at": minute(),
    }
    if expires:
        columns["expires_at"] = after(_value("ttl_and_slack", sa.Double()))
    is_there = sa.exists().where(_is_ours(t.threads))
    made = sa.select(*columns.values()).where(
        _is_opened(t), ~_has_index(t), ~is_there.correlate(None)
    )
    return t.threads.insert().from_select([*columns], made, include_defaults=False)


def _new_line(t: Tables) -> sa.Insert:
    columns: dict[str, Any] = {
        **_of(t.lines, "tenant", "thread_id", "namespace", "writer", "run"),
        **dict.fromkeys(("head", "open_chain", "last_sequence"), ONE),
        "open_bytes": _value("added", sa.BigInteger()),
        "floor": ZERO,
        "updated_at": now(),
    }
    made = sa.select(*columns.values()).where(_is_ours(t.threads))
    return t.lines.insert().from_select([*columns], made, include_defaults=False)


def _first_version(t: Tables) -> sa.Insert:
    place = {"sequence": ONE, "chain": ONE}
    return _kept(t, place, _is_ours(t.lines))


def _kept(t: Tables, place: dict[str, Any], *conditions: sa.ColumnElement[bool]) -> sa.Insert:
    """Return the insert of a version at a position of the line, if the conditions hold."""
    columns: dict[str, Any] = {
        "line": t.lines.c.line,
        **place,
        **_of(t.checkpoints, "checkpoint_id", "digest"),
        "codec": ZERO,
        "created_at": now(),
        **_of(t.checkpoints, "metadata", "labels", "payload"),  # Oracle wants long values last
    }
    made = sa.select(*columns.values()).where(*conditions)
    return t.checkpoints.insert().from_select([*columns], made, include_defaults=False)
