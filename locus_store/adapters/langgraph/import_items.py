"""Items of LangGraph's own stores: ``SqliteStore``, ``PostgresStore`` and ``RedisStore``.

LangGraph joins a namespace with dots and parts it at dots again, and so does this import.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from locus_store.adapters.langgraph.source_redis_items import ItemRow, open_source
from locus_store.adapters.sql_sources import open_rows, parse_time, scheme_of
from locus_store.errors import ConflictError, IntegrityError, SchemaError
from locus_store.types.items import PutItem
from locus_store.values import vectors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from locus_store.adapters.langgraph.source_redis_items import Pages
    from locus_store.adapters.sql_sources import Rows
    from locus_store.store import BaseStore
    from locus_store.types.items import Put

PAGE: Final = 500
"""Items that are read and written at a time."""

CREATED_AT, UPDATED_AT = "langgraph_created_at", "langgraph_updated_at"
"""Metadata keys of an imported item: LangGraph's own times, in ISO 8601."""

_SECONDS: Final = 60
_NAMED: Final = 20
"""The number of items that an error names at most."""

_COLUMNS: Final = ("prefix", "key", "value", "created_at", "updated_at")
_OF_TTL: Final = ("expires_at", "ttl_minutes")


@dataclass(slots=True)
class ItemCounts:
    """The result of an import: numbers of items."""

    written: int = 0
    same: int = 0
    """There already, with the same value."""

    newer: int = 0
    """There already, with another value; left as they are."""

    without_embeddings: int = 0
    """Items in ``written`` whose embeddings do not fit the store and were left out."""

    failed: dict[str, str] = field(default_factory=dict)


async def import_langgraph_store(
    store: BaseStore, url: str, *, progress: Callable[[], None] | None = None
) -> ItemCounts:
    """Put the items of LangGraph's tables or keys ``store`` and ``store_vectors`` into a store.

    An item that exists already is left unchanged, so that a second run continues the first one.
    The least recently updated items are put first, so that searches keep their order. An item keeps
    its value, its time to live, which restarts, and its embeddings where the store has their
    dimension; nothing is embedded again. Of a time to live in Redis only the rest is known.
    LangGraph's times are kept in the metadata. Expired items are left out.

    Args:
        store: Where to.
        url: ``postgresql://…`` or ``sqlite:///file.db``: the database with LangGraph's tables. For
            tables in another PostgreSQL schema, say ``options=-csearch_path%3Dschema`` in it. Or
            ``redis://…``, which may end in ``?store_prefix=…&vector_prefix=…``: the keys of
            ``RedisStore``. Stop its writers: Redis has no snapshot to read from.
        progress: Called for each item that is done.

    Raises:
        SchemaError: LangGraph's tables or keys are not there.
        IntegrityError: A row of the source is damaged, or cannot be kept; names it. All other items
            were imported.
        InvalidArgumentError: The scheme is not supported.
    """
    counts = ItemCounts()
    async with _opened(url) as (shown, pages):
        async for rows in pages:
            await _take(store, rows, counts)
            for _ in rows if progress else ():
                progress()  # type: ignore[misc]  # it is one
    if counts.failed:
        (first, why), *more = counts.failed.items()
        names = ", ".join(name for name, _ in more[:_NAMED])
        others = f"; nor were {len(more)} others: {names}" if more else ""
        raise IntegrityError(
            f"{shown}, item {first} was not imported: {why}{others}. Of the others "
            f"{counts.written} were written, {counts.same + counts.newer} were there"
        )
    return counts


async def _take(store: BaseStore, rows: Sequence[ItemRow], counts: ItemCounts) -> None:
    now = datetime.now(UTC)
    puts: list[tuple[Put, bool]] = []
    for row in rows:
        if row.expires_at is not None and row.expires_at <= now:
            continue
        try:
            puts.append(_put(store, row))
        except (ValueError, TypeError) as exc:  # some are ours
            counts.failed[f"{row.key!r} of {row.namespace!r}"] = str(exc)
    found = await store.read([(it.namespace, it.key) for it, _ in puts]) if puts else []
    new = []
    for put, there in zip(puts, found, strict=True):
        if there is None:
            new.append(put)
        elif there.value == put[0].value:
            counts.same += 1
        else:
            counts.newer += 1
    stored = await _written(store, new, counts) if new else []
    counts.written += len(stored)
    counts.without_embeddings += sum(not is_whole for _, is_whole in stored)


async def _written(
    store: BaseStore, puts: list[tuple[Put, bool]], counts: ItemCounts
) -> list[tuple[Put, bool]]:
    """Store the items that were not put meanwhile; return them."""
    try:
        await store.apply([it for it, _ in puts])
    except ConflictError:
        if len(puts) > 1:
            return [it for one in puts for it in await _written(store, [one], counts)]
        counts.newer += 1
        return []
    return puts


def _put(store: BaseStore, row: ItemRow) -> tuple[Put, bool]:
    """Return the item to store, and whether it has all of its embeddings.

    Raises:
        ValueError: A value or name is damaged, or cannot be kept.
    """
    if row.problem:
        raise ValueError(row.problem)
    ttl_seconds = None if row.ttl_minutes is None else row.ttl_minutes * _SECONDS
    times = {CREATED_AT: row.created_at.isoformat(), UPDATED_AT: row.updated_at.isoformat()}
    value = json.loads(row.value)
    put = store.checked(PutItem(row.namespace, row.key, value, times, ttl_seconds, 0))
    dimension = store.dimension if store.capabilities.semantic_search else None
    if any(len(it) != dimension for it in row.embeddings):
        return put, False
    packed = (vectors.pack(it, len(it), store.metric) for it in row.embeddings)
    return replace(put, vectors=tuple(packed)), True


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[str, Pages]]:
    """Open the source: yield its name for messages, and its items, least recently updated first."""
    if scheme_of(url) in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        async with open_source(url) as found:
            yield found
        return
    readable = "LangGraph's stores are read from postgresql://, sqlite:/// and redis://"
    async with open_rows(url, readable) as rows:
        if not set(_COLUMNS) <= await rows.list_columns("store"):
            raise SchemaError(
                f"{rows.shown} has no table 'store' of LangGraph's own stores; name the database "
                "(and in PostgreSQL the schema, by options=-csearch_path%3Dschema) that "
                "PostgresStore or SqliteStore wrote"
            )
        async with rows.snapshot():
            yield rows.shown, _pages(rows)


async def _pages(rows: Rows) -> Pages:
    there = await rows.list_columns("store")
    ttl = ", ".join(f"s.{it}" if it in there else f"NULL AS {it}" for it in _OF_TTL)
    has_vectors = bool(await rows.list_columns("store_vectors"))
    embeddings, ties = ("NULL", "s.rowid") if rows.is_sqlite else (_EMBEDDINGS, "s.prefix, s.key")
    query = (
        "SELECT s.prefix, s.key, CAST(s.value AS text) AS value, s.created_at, s.updated_at,"  # noqa: S608
        f" {ttl}, {embeddings if has_vectors else 'NULL'} AS embeddings FROM store s"
        f" ORDER BY s.updated_at, {ties}"
    )
    async for page in rows.pages(query, PAGE):
        yield [
            ItemRow(
                it["prefix"],
                it["key"],
                it["value"],
                parse_time(it["created_at"]),
                parse_time(it["updated_at"]),
                parse_time(it["expires_at"]) if it["expires_at"] else None,
                it["ttl_minutes"],
                await _embeddings(rows, it) if has_vectors else [],
            )
            for it in page
        ]


_EMBEDDINGS: Final = (
    "ARRAY(SELECT v.embedding::text FROM store_vectors v WHERE v.prefix = s.prefix"
    " AND v.key = s.key ORDER BY v.field_name)"
)


async def _embeddings(rows: Rows, row: Any) -> list[list[float]]:
    if not rows.is_sqlite:
        return [json.loads(it) for it in row["embeddings"]]
    query = "SELECT embedding FROM store_vectors WHERE prefix = ? AND key = ? ORDER BY field_name"
    return [vectors.unpack(it[0]) for it in await rows.fetch_all(query, row["prefix"], row["key"])]
