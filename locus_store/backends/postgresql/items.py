"""PostgreSQL's statements for a store: of writes and look-ups one, with one round trip."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from operator import add
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.visitors import cloned_traverse

from locus_store.backends.postgresql.columns import (
    dump_jsonb,
    dump_valueb,
    make_jsonb_condition,
    make_word_condition,
    set_config,
)
from locus_store.backends.postgresql.failures import get_sqlstate
from locus_store.backends.postgresql.policies import MARK
from locus_store.backends.postgresql.statements import render_audited
from locus_store.errors import BackendError
from locus_store.sql.columns.dialect_columns import PlainText
from locus_store.sql.columns.types import bind_text, encode_path
from locus_store.sql.item_columns import select_items, select_vectors
from locus_store.sql.items import BUSY, Items, Outcome, RecordedChanges, Scored, make_outcome
from locus_store.sql.schema.tables import Tables
from locus_store.types.items import Change, Name, Put, Wanted, encode_namespace
from locus_store.values import vectors

EFFORT: Final = 100
"""Candidates that an HNSW index keeps, at least; pgvector's own 40 finds fewer of the nearest."""

MOST_EFFORT: Final = 1000
"""The largest value that pgvector accepts."""

PROBES: Final = 10
"""Lists of an IVFFlat index that are looked into first."""

_LOCK_NOT_AVAILABLE: Final = "55P03"

_OPERATORS: Final = {"cosine": "<=>", "l2": "<->", "ip": "<#>"}


class VectorsChangedError(BackendError):
    """The database is not as the statement assumed; nothing was written."""


class PostgreSQLItems(Items):
    """PostgreSQL's implementations of the hooks and of the writes."""

    most_names = 8000
    """Two parameters each, of 32,767."""

    make_condition = staticmethod(make_jsonb_condition)
    may_have_word = staticmethod(make_word_condition)

    def apply(self, calls: Sequence[Sequence[Change]], *, waits: bool) -> list[Outcome]:
        """See ``Items.apply``; one statement, built by ``_apply``."""
        quote = self.connection.dialect.identifier_preparer
        recorded = _list_recorded(calls)
        audit = quote.format_table(self.tables.audit) if recorded else ""
        statement = _apply(*self._words, audit, waits=waits)
        try:
            rows = self.connection.execute(statement, self._bind(calls) | recorded).all()
        except DBAPIError as exc:
            if waits or get_sqlstate(exc) != _LOCK_NOT_AVAILABLE:
                raise
            return [BUSY] * len(calls)
        if not rows[0].holds:
            raise VectorsChangedError(
                "another process made the table of embeddings, or another database was put in the"
                " place of the opened one, and nothing was done; try again"
            )
        self._delete_embeddings([row.raced for row in rows if row.raced is not None])
        rows_left, outcomes = iter(rows), list[Outcome]()
        for batch in calls:
            its_rows = [next(rows_left) for _ in batch]
            versions = {
                (change.namespace, change.key): row.found
                for change, row in zip(batch, its_rows, strict=True)
            }
            is_busy = any(row.is_busy for row in its_rows)
            outcomes.append(BUSY if is_busy else make_outcome(batch, versions))
        return outcomes

    @property
    def _knows_embeddings(self) -> bool:
        """True if the table of embeddings was there; ``apply`` checks this again."""
        return self.context.found.dimension is not None

    @property
    def _words(self) -> tuple[str, str, str, str]:
        """The names in a statement's text that differ between databases."""
        quote = self.connection.dialect.identifier_preparer
        home = quote.quote(self.context.found.home) if self._knows_embeddings else ""
        names = (self.store, self.tables.settings, self.embeddings)
        store, settings, embeddings = map(quote.format_table, names)
        return store, settings, embeddings, home

    def _bind(self, calls: Sequence[Sequence[Change]]) -> dict[str, Any]:
        """Return the parameters: one list for each field."""
        tenancy = self.context.tenancy
        changes = [it for batch in calls for it in batch]
        puts = [it if isinstance(it, Put) else None for it in changes]
        stamps = [it and it.stamp for it in puts]
        bound = {
            "tenant": tenancy.tenant,
            "store_id": tenancy.store,
            "setting_rows": 1 + self._knows_embeddings,
            "namespaces": [encode_path(encode_namespace(it.namespace)) for it in changes],
            "keys": [it.key for it in changes],
            "values": [None if it is None else dump_valueb(it.json) for it in puts],
            "metadata": [None if it is None else dump_jsonb(it.metadata) for it in puts],
            "ttls": [None if it is None else it.ttl_seconds for it in puts],
            "expected": [None if it is None else it.expected_version for it in puts],
            "versions": [it and it.version for it in stamps],
            "created": [it and it.created_at for it in stamps],
            "updated": [it and it.updated_at for it in stamps],
            "expires": [it and it.expires_at for it in stamps],
            "removes": [it is None for it in puts],
            "batches": [at for at, batch in enumerate(calls) for _ in batch],
        }
        if self._knows_embeddings:
            parts = [
                (at, part, render_vector(vector))
                for at, put in enumerate(puts, 1)
                for part, vector in enumerate(put.vectors if put else ())
            ]
            bound["positions"], bound["parts"], bound["embeddings"] = (
                map(list, zip(*parts, strict=True)) if parts else ([], [], [])
            )
        return bound

    def select_each(
        self, select: Callable[[Tables], sa.Select[Any]], names: Sequence[Name]
    ) -> sa.Select[Any]:
        """See ``Items``; one text for any number of names, each of which the index finds."""
        parts = [encode_path(encode_namespace(it)) for it, _ in names]
        texts = (
            sa.bindparam(None, values, sa.ARRAY(sa.Text()))
            for values in (parts, [key for _, key in names])
        )
        columns = (sa.column(name, sa.Text()) for name in ("namespace", "key"))
        each = sa.func.unnest(*texts).table_valued(*columns, name="each").render_derived()
        is_it = (sa.type_coerce(self.store.c[it.name], sa.Text()) == it for it in each.c)
        one = select(self.tables).where(self._is_ours, *is_it).offset(0).lateral("one")
        return sa.select(one).select_from(each.join(one, sa.true()))

    def rank(self, search: Wanted, vector: bytes) -> Iterator[Scored]:
        """See ``Items.rank``; fetches more rows while the conditions refuse some."""
        select = partial(self._select_nearest, search, vector)
        return self.rank_widening(
            search, vector, lambda size: self.connection.execute(select(size)).all()
        )

    def _select_nearest(self, search: Wanted, vector: bytes, size: int) -> sa.Select[Any]:
        """Return the query, which uses an index if there is one, and else compares exactly.

        An index gives up after some ten thousand items that the conditions refuse.
        """
        c, e, home = self.store.c, self.embeddings.c, self.context.found.home
        quoted = self.connection.dialect.identifier_preparer.quote(home)
        operator = f"OPERATOR({quoted}.{_OPERATORS[self.context.metric]})"
        target = sa.cast(bind_text(render_vector(vector)), _Vector(quoted))
        once = sa.select(target).scalar_subquery()  # read once, and not for each row
        distance: Any = e.embedding.op(operator, return_type=sa.Double())(once)
        below = sa.select(e.item, e.embedding).join_from(
            self.store, self.embeddings, e.item == c.item
        )
        where, *others = self.are_wanted(search)
        # Planned once for all values, the statement has to say how much of an index it takes.
        where = cloned_traverse(where, {}, {"bindparam": _render_literally})
        most = sa.literal(size, sa.Integer(), literal_execute=True)
        below = below.where(where, *others).limit(most)
        fast = below.where(self._is_indexed, _extend_scans(size)).order_by(distance).cte("fast")
        found = sa.select(sa.func.count()).select_from(fast).scalar_subquery()
        # An index has no order by this sum.
        exact = below.where(found < size).order_by(distance + 0.0, c.namespace, c.key).cte("exact")
        all_found = sa.union_all(sa.select(fast).where(found >= size), sa.select(exact)).subquery(
            "found"
        )
        embedding = sa.cast(all_found.c.embedding, _Floats()).label("embedding")
        return (
            select_items(self.tables)
            .add_columns(embedding)
            .join(all_found, all_found.c.item == c.item)
        )

    @staticmethod
    def select_vectors(t: Tables) -> sa.Select[Any]:
        found = select_vectors(t)
        *columns, embedding = found.selected_columns
        floats = sa.cast(embedding, _Floats())
        return found.with_only_columns(*columns, floats.label("embedding"))

    @property
    def _is_indexed(self) -> sa.ColumnElement[bool]:
        name = self.connection.dialect.identifier_preparer.format_table(self.embeddings)
        table = sa.cast(sa.func.to_regclass(bind_text(name)), postgresql.OID())
        is_index = sa.and_(_INDEXES.c.indrelid == table, ~_INDEXES.c.indisprimary)
        return sa.select(sa.exists().where(is_index)).scalar_subquery()


def _list_recorded(batches: Sequence[Sequence[Change]]) -> dict[str, list[Any]]:
    """Return the parameters of the batches whose calls are recorded; empty if there are none."""
    calls = [
        (at, batch.call.method, *batch.call.make_values().values())
        for at, batch in enumerate(batches)
        if isinstance(batch, RecordedChanges)
    ]
    return dict(zip(_RECORDED, map(list, zip(*calls, strict=True)), strict=False))


def _render_literally(value: sa.BindParameter[Any]) -> None:
    value.literal_execute = True


_INDEXES: Final = sa.table(
    "pg_index", sa.column("indrelid"), sa.column("indisprimary", sa.Boolean()), schema="pg_catalog"
)


class _Vector(sa.types.UserDefinedType[Any]):
    """pgvector's type, in the schema of its extension."""

    cache_ok = True

    def __init__(self, home: str) -> None:
        self.home = home

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.home}.vector"


class _Floats(sa.types.UserDefinedType[bytes]):
    """An array, read as little-endian float32, as all backends store it."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "REAL[]"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], bytes]:
        return lambda value: struct.pack(f"<{len(value)}f", *value)


def _extend_scans(size: int) -> sa.ColumnElement[bool]:
    """Return a true condition that lets index scans continue until they find enough rows.

    Part of the statement: a pooler may give the next one to another connection.
    """
    settings = {
        "hnsw.iterative_scan": "strict_order",
        "hnsw.ef_search": str(min(max(EFFORT, size), MOST_EFFORT)),
        "ivfflat.iterative_scan": "relaxed_order",
        "ivfflat.probes": str(PROBES),
    }
    done = (set_config(name, value) for name, value in settings.items())
    return sa.select(reduce(add, done)).scalar_subquery().is_not(None)


def render_vector(vector: bytes) -> str:
    """Return a vector as text that pgvector reads exactly."""
    return "[" + ",".join(f"{it:.9g}" for it in vectors.unpack(vector)) + "]"


_LOOKED: Final = """
WITH input AS MATERIALIZED (
  SELECT * FROM unnest(:namespaces, :keys, :values, :metadata, :ttls, :expected, :versions,
      :created, :updated, :expires, :removes, :batches)
    WITH ORDINALITY i (namespace, key, value, metadata, ttl, expected, version, created, updated,
      expires, removes, batch, position)),
fact AS MATERIALIZED (
  -- It is the opened database, with a table of embeddings if it had one then.
  SELECT count(*) = :setting_rows{patience} AS holds FROM {settings} s
  WHERE (s.name = 'store_id' AND s.value = :store_id) OR s.name = 'vector_dimension'),
locked AS MATERIALIZED (
  -- Each by the index: a plan made when the table was small would prefer the whole table.
  SELECT i.position, l.*
  FROM (SELECT * FROM input ORDER BY namespace COLLATE "C", key COLLATE "C") i
  CROSS JOIN LATERAL (
    SELECT s.item, s.version,
      s.expires_at IS NULL OR s.expires_at > statement_timestamp() AS is_live
    FROM {store} s
    WHERE s.tenant = :tenant AND s.namespace = i.namespace AND s.key = i.key
      AND (SELECT holds FROM fact)
    FOR UPDATE{skipping}) l),
seen AS (
  SELECT i.*, l.item, coalesce(l.is_live, false) AS is_live,
    CASE WHEN l.is_live THEN l.version ELSE 0 END AS found, {busy} AS is_busy
  FROM input i LEFT JOIN locked l USING (position)),
looked AS MATERIALIZED (
  SELECT *, bool_and((SELECT holds FROM fact) AND NOT is_busy
      AND (expected IS NULL OR expected = found)) OVER (PARTITION BY batch) AS does
  FROM seen),
-- By name: a row that was changed since the statement began has another number by now.
removed AS (
  DELETE FROM {store} t USING looked l
  WHERE t.tenant = :tenant AND t.namespace = l.namespace AND t.key = l.key AND l.removes
    AND l.does),
updated AS (
  UPDATE {store} t SET {new_number}value = l.value::jsonb, metadata = l.metadata::jsonb,
    version = {version}, ttl_seconds = l.ttl, updated_at = {moment}, expires_at = {expiry},
    created_at = coalesce(l.created, CASE WHEN l.is_live THEN t.created_at ELSE {moment} END)
  FROM looked l
  WHERE t.tenant = :tenant AND t.namespace = l.namespace AND t.key = l.key AND NOT l.removes
    AND l.does AND l.item IS NOT NULL
  RETURNING t.item, l.position),
inserted AS (
  -- Where another one is faster, this is undone as a whole, and run again.
  INSERT INTO {store} (tenant, namespace, key, value, metadata, version, ttl_seconds, updated_at,
    expires_at, created_at)
  SELECT :tenant, l.namespace, l.key, l.value::jsonb, l.metadata::jsonb, {version}, l.ttl,
    {moment}, {expiry}, coalesce(l.created, {moment})
  FROM looked l WHERE l.item IS NULL AND NOT l.removes AND l.does
  ORDER BY l.namespace COLLATE "C", l.key COLLATE "C" RETURNING item, namespace, key)
"""

_ALL: Final = """{audited}
SELECT f.holds, l.found, l.is_busy, {raced} AS raced FROM looked l, fact f WHERE {mark}
ORDER BY l.position
"""

# Every put gives its item a new number, so that embeddings that another put wrote meanwhile, which
# this statement does not see, belong to no item; `raced` lists items to clean up in another one.
_EMBEDDING: Final = """,
unembedded AS (
  DELETE FROM {embeddings} e USING looked l WHERE e.item = l.item AND l.does),
embedded AS (
  INSERT INTO {embeddings} (item, part, embedding)
  SELECT w.item, p.part, p.embedding::{home}.vector
  FROM unnest(:positions, :parts, :embeddings) p (position, part, embedding)
  JOIN (SELECT item, position FROM updated UNION ALL
    SELECT n.item, l.position FROM inserted n JOIN looked l USING (namespace, key)) w
  USING (position))
"""

# A row for each batch that is done, with the results that the call returns.
_RECORDED: Final = ("recorded", "methods", "whos", "details")
_DONE: Final = """(SELECT l.batch, string_agg(CASE WHEN l.removes THEN CAST(l.found > 0 AS int)
        ELSE coalesce(l.version, l.found + 1) END::text, ',' ORDER BY l.position) AS versions
      FROM looked l WHERE l.does GROUP BY l.batch) d
    JOIN unnest(:recorded, :methods, :whos, :details) c (batch, method, who, detail)
    USING (batch)"""

_RACED: Final = """CASE WHEN l.does AND l.item IS NOT NULL
    AND NOT EXISTS (SELECT FROM {store} s WHERE s.item = l.item) THEN l.item END"""

# An uncommitted insert of another transaction cannot be skipped: an insert waits for it.
_PATIENCE: Final = " AND set_config('lock_timeout', '100ms', true) IS NOT NULL"

# A skipped row exists, but is not among the locked rows.
_BUSY: Final = """l.position IS NULL AND EXISTS (SELECT FROM {store} s
      WHERE s.tenant = :tenant AND s.namespace = i.namespace AND s.key = i.key)"""


_MOMENT: Final = "statement_timestamp() + (l.position - 1)::float8 * interval '1 microsecond'"


@lru_cache(maxsize=64)
def _apply(
    store: str, settings: str, embeddings: str, home: str, audit: str, *, waits: bool
) -> sa.TextClause:
    """Return the statement that writes all batches of changes.

    Rows are locked in the order of their names, and then seen as they are by now. Of what is not
    there, nothing can be locked: a name that is taken meanwhile is a race, to be run again.

    Args:
        store: Name of the table, quoted, as the next two.
        settings: Name of the table of settings.
        embeddings: Name of the table of embeddings.
        home: Schema of pgvector; ``""``: there is no table of embeddings.
        audit: Name of the table of entries; ``""``: no call is recorded.
        waits: For rows that others have locked; else they are busy, and the statement fails where
            an insert waits for longer than 100 ms.
    """
    texts, numbers = sa.ARRAY(sa.Text()), sa.ARRAY(sa.BigInteger())
    times = sa.ARRAY(sa.DateTime(timezone=True))
    kinds: dict[str, Any] = {
        **dict.fromkeys(("namespaces", "keys", "values", "metadata"), texts),
        "ttls": sa.ARRAY(sa.Double()),
        **dict.fromkeys(("expected", "versions"), numbers),
        **dict.fromkeys(("created", "updated", "expires"), times),
        "removes": sa.ARRAY(sa.Boolean()),
        "batches": numbers,
        "tenant": PlainText(),
        "store_id": PlainText(),
        "setting_rows": sa.BigInteger(),
    }
    if home:
        kinds |= {"positions": numbers, "parts": numbers, "embeddings": texts}
    audited = ""
    if audit:
        kinds |= {"recorded": numbers, "methods": texts, "whos": texts, "details": texts}
        parts = {"tenant": ":tenant", "who": "c.who", "thread_id": "NULL"}
        detail = "left(c.detail, -1) || ',\"versions\":[' || d.versions || ']}'"
        audited = render_audited(audit, "c.method", _DONE, detail=detail, **parts)
    text = (_LOOKED + (_EMBEDDING if home else "") + _ALL).format(
        audited=audited,
        store=store,
        settings=settings,
        embeddings=embeddings,
        home=home,
        skipping="" if waits else " SKIP LOCKED",
        patience="" if waits else _PATIENCE,
        busy="false" if waits else _BUSY.format(store=store),
        raced=_RACED.format(store=store) if home else "NULL",
        new_number="item = DEFAULT, " if home else "",
        mark=MARK,
        version="coalesce(l.version, l.found + 1)",
        moment=f"least(l.updated, {_MOMENT})",
        expiry="coalesce(l.expires, statement_timestamp() + make_interval(secs => l.ttl))",
    )
    return sa.text(text.strip()).bindparams(
        *(sa.bindparam(name, type_=kind) for name, kind in kinds.items())
    )
