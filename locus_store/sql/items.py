"""A store's items in SQL: each statement once, for all databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from locus_store.errors import ConflictError
from locus_store.sql.audit import RecordedCall
from locus_store.sql.columns.types import make_clock, make_expiry
from locus_store.sql.item_columns import (
    BOUNDS,
    StoreContext,
    delete_items,
    is_live_item,
    make_bounds,
    make_changed_columns,
    make_item,
    make_new_columns,
    select_items,
    select_live,
    select_locked,
    select_named,
    select_namespaces,
    select_recent,
    select_vectors,
)
from locus_store.sql.schema.tables import Tables
from locus_store.sql.schema.vectors import DIMENSION_SETTING
from locus_store.sql.threads.pending import BATCH, fill_parameters, split_batches
from locus_store.sql.threads.statements import compile_form, compile_statements, select_clock
from locus_store.types.items import (
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    Put,
    StoreItem,
    Wanted,
    decode_namespace,
    encode_namespace,
    require_version,
)
from locus_store.values import vectors
from locus_store.values.filters import Clause

if TYPE_CHECKING:
    AnyRow: TypeAlias = Row[*tuple[Any, ...]]

Scored: TypeAlias = "tuple[StoreItem, float]"

Outcome: TypeAlias = "list[int] | ConflictError | None"
"""The outcome of a batch, which ``BaseStore.apply`` returns or raises; ``None``: see ``BUSY``."""

BUSY: Final = None
"""Others have locked an item; nothing was done."""

FIRST: Final = 64
"""Items that are asked for at first where each is looked at."""

SCANNED: Final = 1000
"""Items that are read at a time where all may have to be looked at."""

CHUNK: Final = 2048
"""Embeddings that are compared at once."""

MARGIN: Final = 16
"""Embeddings that are asked for beyond those that are wanted; see ``Items.rank_widening``."""

ROUNDED: Final = 1e-5
"""Databases compute distances in float32: so much, or such a part, they may be off."""

MOST_WIDENED: Final = 8192
"""Embeddings with nearly the same score among which order is exact."""

MOST_CONDITIONS: Final = 50
"""Conditions of one search that a database is given; SQLite nests 1,000 at most."""


class Items:
    """Portable statements on a connection; those that write run in a transaction.

    The methods under "dialect hooks" are all that may differ between databases; without overrides
    they are correct on any that keeps embeddings as bytes.
    """

    def __init__(self, connection: Connection, context: StoreContext) -> None:
        self.connection = connection
        self.context = context
        self.tables = context.tenancy.tables
        self.store = self.tables.store
        self.embeddings = self.tables.embeddings
        self._sql = compile_statements(self.tables, connection.dialect)
        self._dimension_said: bool | None = None

    # --- dialect hooks

    most_names: ClassVar[int] = BATCH
    """Names in one statement."""

    select_vectors = staticmethod(select_vectors)

    def make_condition(
        self, column: sa.ColumnElement[Any], clause: Clause
    ) -> sa.ColumnElement[bool] | None:
        """Return a condition that all matching rows meet; rows are checked again in Python."""
        return None

    def may_have_word(
        self, column: sa.ColumnElement[Any], word: str
    ) -> sa.ColumnElement[bool] | None:
        """Return the condition that a folded word may occur in the strings of a value."""
        return None

    def have_names(self, names: Sequence[Name]) -> sa.ColumnElement[bool]:
        """Return the condition that selects the tenant's items of these names."""
        c = self.store.c
        if len(names) == 1:
            [(namespace, key)] = names
            return sa.and_(self.are_in(namespace, recursive=False), c.key == key)
        pairs = [(encode_namespace(namespace), key) for namespace, key in names]
        return sa.and_(self._is_ours, sa.tuple_(c.namespace, c.key).in_(pairs))

    def select_each(
        self, select: Callable[[Tables], sa.Select[Any]], names: Sequence[Name]
    ) -> sa.Select[Any]:
        """Return the query ``select`` for the tenant's items of several names."""
        return select(self.tables).where(self.have_names(names))

    def rank(self, search: Wanted, vector: bytes) -> Iterator[tuple[StoreItem, float]]:
        """Yield live items below the prefix that meet the conditions, with scores, best first."""
        best: dict[int, tuple[float, Namespace, str]] = {}
        for rows in self._read_candidates(search):
            scores = vectors.compute_scores(
                vector, [it.embedding for it in rows], self.context.metric
            )
            for row, score in zip(rows, scores, strict=True):
                if row.item not in best or score > best[row.item][0]:
                    best[row.item] = (score, decode_namespace(row.namespace), row.key)
        order = sorted(best, key=lambda it: (-best[it][0], *best[it][1:]))
        for some in split_batches(order):
            items = self.connection.execute(
                select_items(self.tables).where(self.store.c.item.in_(some))
            )
            found = {row.item: make_item(row) for row in items}
            yield from ((found[it], best[it][0]) for it in some if it in found)

    def rank_widening(
        self, search: Wanted, vector: bytes, select: Callable[[int], Sequence[AnyRow]]
    ) -> Iterator[Scored]:
        """Rank by exact scores what a database ranked by rounded distances.

        An item comes when none that was not fetched can come before it: as many are fetched as
        that takes, and all that tie with the last one.

        Args:
            search: How many are likely to be asked for.
            vector: What they are to be near to.
            select: Returns this many nearest embeddings, each with its item, or all of them.
        """
        size, given = search.offset + search.limit + MARGIN, set[Any]()
        while True:
            rows = select(size)
            scores = vectors.compute_scores(
                vector, [it.embedding for it in rows], self.context.metric
            )
            found, is_all = _take_best(rows, scores), len(rows) < size
            floor = -inf
            if not is_all and size <= MOST_WIDENED:
                last = min((score for _, score in found), default=-inf)
                floor = last + ROUNDED * max(1.0, abs(last))
            found.sort(key=lambda it: (-it[1], it[0].namespace, it[0].key))
            for item, score in found:
                name = (item.namespace, item.key)
                if score > floor and name not in given:
                    given.add(name)
                    yield item, score
            if is_all:
                return
            size *= 4

    def apply(self, calls: Sequence[Sequence[Change]], *, waits: bool) -> list[Outcome]:
        """Write each batch of changes as a whole or not at all; no item is in two batches.

        The calls of ``RecordedChanges`` are recorded.

        Args:
            calls: Each is decided by itself.
            waits: For items that others have locked. Else a batch with such an item may be left
                undone, as ``BUSY``.
        """
        del waits  # portable statements cannot do without
        found = self._find_rows([it.name for batch in calls for it in batch])
        versions = {name: int(it.version) if it.is_live else 0 for name, it in found.items()}
        outcomes = [make_outcome(it, versions) for it in calls]
        changes = [
            change
            for batch, outcome in zip(calls, outcomes, strict=True)
            for change in batch
            if isinstance(outcome, list)
        ]
        rows = [found.get(it.name) for it in changes]
        self._delete_embeddings([row.item for row in rows if row is not None])
        gone = [row for it, row in zip(changes, rows, strict=True) if not isinstance(it, Put)]
        self._delete([row.item for row in gone if row is not None])
        self._put([it for it in changes if isinstance(it, Put)], found)
        for batch, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, list) and isinstance(batch, RecordedChanges):
                batch.call.record(self.connection, self.context.tenancy, outcome)
        return outcomes

    def _find_rows(self, names: Sequence[Name]) -> dict[Name, AnyRow]:
        """Return the rows of these names, locked in the order of all writers; expired ones too."""
        rows = self._ask(select_locked, sorted(names))
        return {(decode_namespace(row.namespace), row.key): row for row in rows}

    def _ask(
        self, select: Callable[[Tables], sa.Select[Any]], names: Sequence[Name]
    ) -> Iterator[AnyRow]:
        """Yield the rows of a query for the items of names; the one for one name is compiled."""
        if len(names) > 1:
            for some in split_batches(names, self.most_names):
                yield from self.connection.execute(self.select_each(select, some))
            return
        tenant = self.context.tenancy.tenant
        for namespace, key in names:
            name = {"tenant": tenant, "namespace": encode_namespace(namespace), "key": key}
            one = compile_form(self._sql, select_named, select)
            yield from one.fetch_named(self.connection, name)

    def _put(self, puts: Sequence[Put], old_rows: dict[Name, AnyRow]) -> None:
        if not puts:
            return
        [(at,)] = compile_form(self._sql, select_clock).fetch_rows(self.connection, {})
        times = self.context.generate_times(at, len(puts))
        is_old = [it.name in old_rows for it in puts]
        is_new = [not it for it in is_old]
        if new := [*compress(puts, is_new)]:
            columns = make_new_columns(new, [*compress(times, is_new)], self.context.tenancy.tenant)
            self._sql.new_item.run_all(self.connection, columns)
        if old := [*compress(puts, is_old)]:
            rows = [old_rows[it.name] for it in old]
            columns = make_changed_columns(old, [*compress(times, is_old)], rows)
            self._sql.changed_item.run_all(self.connection, columns)
        self._embed([it for it in puts if it.vectors])

    def _embed(self, puts: Sequence[Put]) -> None:
        found = self._find_rows([it.name for it in puts]) if puts else {}
        rows = [
            {"item": found[put.name].item, "part": part, "embedding": embedding}
            for put in puts
            for part, embedding in enumerate(put.vectors)
        ]
        if rows:
            self.connection.execute(sa.insert(self.embeddings), rows)

    @property
    def _has_embeddings(self) -> bool:
        if self._dimension_said is None:
            said = self._sql.setting.fetch_first(self.connection, {"name": DIMENSION_SETTING})
            self._dimension_said = said is not None
        return self._dimension_said

    def _delete(self, items: Sequence[int]) -> None:
        self._delete_embeddings(items)
        for some in split_batches(items):
            size, named = fill_parameters("item", some)
            compile_form(self._sql, delete_items, size).run(self.connection, named)

    def _delete_embeddings(self, items: Sequence[int]) -> None:
        for some in split_batches(items) if items and self._has_embeddings else ():
            gone = sa.delete(self.embeddings).where(self.embeddings.c.item.in_(some))
            self.connection.execute(gone)

    def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        query = select_locked(self.tables).where(self.are_in(namespace, recursive=recursive))
        rows = self.connection.execute(self.lock(query)).all()
        self._delete([row.item for row in rows])
        return sum(bool(row.is_live) for row in rows)

    def sweep(self, limit: int) -> int:
        c, gone = self.store.c, list[int]()
        is_over = c.expires_at <= make_clock()
        over = sa.select(c.item).where(self._is_ours, is_over).limit(limit)
        # A limit and a lock do not go together everywhere.
        for some in split_batches([*self.connection.execute(over).scalars()]):
            still = sa.select(c.item).where(c.item.in_(some), is_over)
            gone += self.connection.execute(still.with_for_update(skip_locked=True)).scalars()
        self._delete(gone)
        return len(gone)

    def renew(self, names: Sequence[Name]) -> None:
        c = self.store.c
        for some in split_batches(sorted(names)):
            renewed = self.store.update().where(c.item.in_(self.select_renewable(some)))
            self.connection.execute(renewed.values(expires_at=make_expiry(c.ttl_seconds)))

    def select_renewable(self, names: Sequence[Name]) -> sa.Select[Any]:
        """Return a query that locks the live items of these names that have a time to live."""
        c = self.store.c
        return self.lock(
            sa.select(c.item).where(
                self.have_names(names), self._is_live, c.ttl_seconds.is_not(None)
            )
        )

    def lock(self, items: sa.Select[Any]) -> sa.Select[Any]:
        """Return the query with locks, taken in the order that all writers use."""
        c = self.store.c
        return items.order_by(c.namespace, c.key).with_for_update()

    def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        items = map(make_item, self._ask(select_live, names))
        found = {(it.namespace, it.key): it for it in items}
        return [found.get(name) for name in names]

    def read_page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        key = self.store.c.key
        query = select_live(self.tables).where(self.are_in(namespace, recursive=False))
        if after is not None:
            query = query.where(key > after)
        return [make_item(row) for row in self.connection.execute(query.order_by(key).limit(limit))]

    def find_recent(self, search: Wanted) -> list[StoreItem]:
        if not search.must_inspect():
            return self._read_recent(search, [], search.limit, search.offset)
        c, count, taken = self.store.c, search.offset + search.limit, list[StoreItem]()
        query = select_items(self.tables).where(*self.are_wanted(search))
        query = query.order_by(c.updated_at.desc(), c.item.desc())
        with self.connection.execute(query, execution_options={"yield_per": SCANNED}) as rows:
            for row in rows:
                item = make_item(row)
                if search.takes(item.value, item.metadata):
                    taken.append(item)
                if len(taken) == count:
                    break
        return taken[search.offset :]

    def find_recent_at_once(self, search: Wanted) -> list[StoreItem] | None:
        """Return the result of ``find_recent`` by one query; ``None`` if it found too few."""
        if not search.must_inspect():
            return self.find_recent(search)
        count, conditions = search.offset + search.limit, self._make_conditions(search)
        clauses = len(search.filter.clauses) + len(search.metadata_filter.clauses)
        is_checked = not search.words and len(conditions) == clauses
        size = count if is_checked else max(FIRST, count)
        items = self._read_recent(search, conditions, size)
        taken = [it for it in items if search.takes(it.value, it.metadata)]
        is_enough = len(taken) >= count or len(items) < size
        return taken[search.offset : count] if is_enough else None

    def _read_recent(
        self,
        search: Wanted,
        conditions: Sequence[sa.ColumnElement[bool]],
        limit: int,
        offset: int = 0,
    ) -> list[StoreItem]:
        """Return the newest items within a search's bounds that meet conditions."""
        bounds = make_bounds(search.prefix, recursive=search.recursive)
        key = {"tenant": self.context.tenancy.tenant, "limit": limit, "offset": offset, **bounds}
        found = self._sql.searches.fetch(
            self.connection,
            (select_recent, *bounds),
            lambda: select_recent(self.tables, conditions, *bounds),
            conditions=conditions,
            values=key,
        )
        return list(map(make_item, found))

    def find_nearest(
        self, search: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        taken: list[StoreItem] = []
        for item, score in self.rank(search, vector):
            if threshold is not None and score < threshold:
                break
            if search.takes(item.value, item.metadata):
                taken.append(replace(item, score=score))
            if len(taken) == search.offset + search.limit:
                break
        return taken[search.offset :]

    def _read_candidates(self, search: Wanted) -> Iterator[Sequence[AnyRow]]:
        c, e = self.store.c, self.embeddings.c
        query: sa.Select[Any] = sa.select(e.item, c.namespace, c.key, e.embedding)
        query = query.join_from(self.store, self.embeddings, e.item == c.item)
        result = self.connection.execute(query.where(*self.are_wanted(search)))
        return result.partitions(CHUNK)

    def get_vectors(self, names: Sequence[Name]) -> dict[Name, list[bytes]]:
        """Return the embeddings of live items that have any."""
        found: dict[Name, list[bytes]] = {}
        for row in sorted(self._ask(self.select_vectors, names), key=attrgetter("part")):
            its = found.setdefault((decode_namespace(row.namespace), row.key), [])
            its.append(bytes(row.embedding))
        return found

    def list_namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        bounds = make_bounds(match.fixed, recursive=True)
        key = {"tenant": self.context.tenancy.tenant, **bounds}
        rows = compile_form(self._sql, select_namespaces, *bounds).fetch_rows(self.connection, key)
        found = {cut for (it,) in rows if (cut := match.cut(decode_namespace(it))) is not None}
        return sorted(found)[offset : offset + limit]

    def are_wanted(self, search: Wanted) -> Iterable[sa.ColumnElement[bool]]:
        """Yield the conditions of a search: live, below the prefix, and what SQL can check."""
        yield self.are_in(search.prefix, recursive=search.recursive)
        yield self._is_live
        yield from self._make_conditions(search)

    def _make_conditions(self, search: Wanted) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for what SQL can check of a search, nearly exact ones."""
        value, metadata = self.store.c.value, self.store.c.metadata
        conditions = chain(
            (self.make_condition(value, it) for it in search.filter.clauses),
            (self.make_condition(metadata, it) for it in search.metadata_filter.clauses),
            (self.may_have_word(value, it) for it in search.words),
        )
        return list(islice((it for it in conditions if it is not None), MOST_CONDITIONS))

    def are_in(self, namespace: Namespace, *, recursive: bool) -> sa.ColumnElement[bool]:
        """Return the condition for a namespace, or also all below it; expired items count too."""
        bounds, column = make_bounds(namespace, recursive=recursive), self.store.c.namespace
        return sa.and_(self._is_ours, *(BOUNDS[it](column, bounds[it]) for it in bounds))

    @property
    def _is_ours(self) -> sa.ColumnElement[bool]:
        return self.store.c.tenant == self.context.tenancy.tenant

    @property
    def _is_live(self) -> sa.ColumnElement[bool]:
        return is_live_item(self.tables)


class RecordedChanges(list[Change]):
    """Changes of a call that is recorded."""

    def __init__(self, changes: Sequence[Change], call: RecordedCall) -> None:
        super().__init__(changes)
        self.call = call


def make_outcome(batch: Sequence[Change], versions: Mapping[Name, int]) -> Outcome:
    """Return the outcome of a batch.

    Args:
        batch: Changes of different items.
        versions: The versions of the items that exist.
    """
    results: list[int] = []
    try:
        for change in batch:
            version = versions.get(change.name, 0)
            if isinstance(change, Put):
                require_version(change, version)
                results.append(version + 1 if change.stamp is None else change.stamp.version)
            else:
                results.append(int(version > 0))
    except ConflictError as exc:
        return exc
    return results


def _take_best(rows: Sequence[AnyRow], scores: Sequence[float]) -> list[Scored]:
    """Return the items of rows, each once, with the score of its nearest embedding."""
    best: dict[int, tuple[float, AnyRow]] = {}
    for row, score in zip(rows, scores, strict=True):
        if score > best.get(row.item, (-inf, None))[0]:
            best[row.item] = (score, row)
    return [(make_item(row), score) for score, row in best.values()]
