"""Items of LangGraph's own stores: ``SqliteStore``, ``PostgresStore`` and ``RedisStore``.

LangGraph joins a namespace with dots and parts it at dots again, and so does this import.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from locus_store.adapters.sql_sources import Rows, get_scheme, open_rows, parse_time
from locus_store.errors import ConflictError, IntegrityError, SchemaError
from locus_store.store import BaseStore
from locus_store.types.items import Put, PutItem
from locus_store.values import vectors
from locus_store.values.times import EPOCH, from_microseconds

if TYPE_CHECKING:
    from locus_store.backends.redis.connections import LoopClient

PAGE: Final = 500
"""Items that are read and written at a time."""

CREATED_AT, UPDATED_AT = "langgraph_created_at", "langgraph_updated_at"
"""Metadata keys of an imported item: LangGraph's own times, in ISO 8601."""

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
    async with _open_pages(url) as (shown, pages):
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
    stored = await _store_items(store, new, counts) if new else []
    counts.written += len(stored)
    counts.without_embeddings += sum(not is_whole for _, is_whole in stored)


async def _store_items(
    store: BaseStore, puts: list[tuple[Put, bool]], counts: ItemCounts
) -> list[tuple[Put, bool]]:
    """Store the items that were not put meanwhile; return them."""
    try:
        await store.apply([it for it, _ in puts])
    except ConflictError:
        if len(puts) > 1:
            return [it for one in puts for it in await _store_items(store, [one], counts)]
        counts.newer += 1
        return []
    return puts


def _put(store: BaseStore, row: ItemRow) -> tuple[Put, bool]:
    """Return the item to store, if its value can be kept, and whether all embeddings are there."""
    if row.problem:
        raise ValueError(row.problem)
    ttl_seconds = None if row.ttl_minutes is None else row.ttl_minutes * 60
    times = {CREATED_AT: row.created_at.isoformat(), UPDATED_AT: row.updated_at.isoformat()}
    value = json.loads(row.value)
    put = store.checked(PutItem(row.namespace, row.key, value, times, ttl_seconds, 0))
    dimension = store.dimension if store.capabilities.semantic_search else None
    if any(len(it) != dimension for it in row.embeddings):
        return put, False
    packed = (vectors.pack(it, len(it), store.metric) for it in row.embeddings)
    return replace(put, vectors=tuple(packed)), True


@asynccontextmanager
async def _open_pages(url: str) -> AsyncIterator[tuple[str, Pages]]:
    """Open the source: yield its name for messages, and its items, least recently updated first."""
    if get_scheme(url) in {"redis", "rediss", "valkey", "valkeys", "unix"}:
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
        async with rows.take_snapshot():
            yield rows.shown, _read_pages(rows)


async def _read_pages(rows: Rows) -> Pages:
    there = await rows.list_columns("store")
    ttl = ", ".join(f"s.{it}" if it in there else f"NULL AS {it}" for it in _OF_TTL)
    has_vectors = bool(await rows.list_columns("store_vectors"))
    embeddings, ties = ("NULL", "s.rowid") if rows.is_sqlite else (_EMBEDDINGS, "s.prefix, s.key")
    query = (
        "SELECT s.prefix, s.key, CAST(s.value AS text) AS value, s.created_at, s.updated_at,"  # noqa: S608
        f" {ttl}, {embeddings if has_vectors else 'NULL'} AS embeddings FROM store s"
        f" ORDER BY s.updated_at, {ties}"
    )
    async for page in rows.iterate_pages(query, PAGE):
        yield [
            ItemRow(
                row["prefix"],
                row["key"],
                row["value"],
                parse_time(row["created_at"]),
                parse_time(row["updated_at"]),
                parse_time(row["expires_at"]) if row["expires_at"] else None,
                row["ttl_minutes"],
                await _read_embeddings(rows, row) if has_vectors else [],
            )
            for row in page
        ]


_EMBEDDINGS: Final = (
    "ARRAY(SELECT v.embedding::text FROM store_vectors v WHERE v.prefix = s.prefix"
    " AND v.key = s.key ORDER BY v.field_name)"
)


async def _read_embeddings(rows: Rows, row: Any) -> list[list[float]]:
    if not rows.is_sqlite:
        return [json.loads(it) for it in row["embeddings"]]
    query = "SELECT embedding FROM store_vectors WHERE prefix = ? AND key = ? ORDER BY field_name"
    return [vectors.unpack(it[0]) for it in await rows.fetch_all(query, row["prefix"], row["key"])]


PREFIXES: Final = {"store_prefix": "store", "vector_prefix": "store_vectors"}
"""Options of ``RedisStore`` with their defaults."""

AT_ONCE: Final = 32
"""Keys that are read at once."""

_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
"""A ULID, which ``RedisStore`` gives to each put."""

_WRAPPED: Final = {"__serde_type__", "__serde_data__"}
"""Names in a value that was not JSON."""

_MILLISECONDS_A_MINUTE: Final = 60_000


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[tuple[str, Pages]]:
    """The items behind a URL, which may end in ``?store_prefix=…&vector_prefix=…``, if any."""
    from locus_store.backends.redis import addresses  # noqa: PLC0415  (an extra)

    place, _, query = url.partition("?")
    options = [it.partition("=") for it in query.split("&") if it]
    prefixes = PREFIXES | {key: unquote(it) for key, _, it in options if key in PREFIXES}
    rest = "&".join("".join(it) for it in options if it[0] not in PREFIXES)
    connections = addresses.connect(f"{place}?{rest}" if rest else place)
    try:
        client = await connections.get()
        shown = f"Redis {client.where}"
        keys = _Keys(client, prefixes)
        ids = await keys.list_ids()
        if not ids:
            raise SchemaError(
                f"{shown} has no keys {prefixes['store_prefix']}:… of LangGraph's RedisStore; name "
                "the database that it wrote, and its store_prefix by ?store_prefix="
            )
        yield shown, keys.iterate_pages(ids)
    finally:
        await connections.close()


class _Keys:
    """The items behind the keys of two prefixes."""

    def __init__(self, client: LoopClient, prefixes: Mapping[str, str]) -> None:
        self._client = client
        self._item, self._vector = (f"{prefixes[name]}:" for name in PREFIXES)

    async def list_ids(self) -> list[str]:
        """Return the ids of all items, the least recently updated first.

        Concurrent puts of one item leave several documents; the last updated one counts.
        """
        pattern = re.sub(r"([\\*?\[\]^])", r"\\\1", self._item) + "*"

        async def scanned() -> set[bytes]:
            return {it async for it in self._client.client.scan_iter(match=pattern, count=1000)}

        keys = (it.decode(errors="replace") for it in await self._client.retry(scanned))
        names = (it.removeprefix(self._item) for it in keys)
        heads: list[tuple[float, str, tuple[str, str]]] = []
        for some in _split_chunks([it for it in names if _ID.fullmatch(it)]):
            heads += await asyncio.gather(*map(self._read_head, some))
        newest: dict[tuple[str, str], str] = {}
        for _, name, item in sorted(heads):
            newest.pop(item, None)
            newest[item] = name
        return list(newest.values())

    async def _read_head(self, name: str) -> tuple[float, str, tuple[str, str]]:
        """Return when a document was updated, its id, and whose it is."""
        paths = ("$.updated_at", "$.prefix", "$.key")
        found = json.loads(
            await self._client.run_command("JSON.GET", self._item + name, *paths) or "{}"
        )
        at, prefix, key = (next(iter(found.get(it, ())), None) for it in paths)
        updated_at = at if isinstance(at, int | float) else 0
        if isinstance(prefix, str) and isinstance(key, str):
            return updated_at, name, (prefix, key)
        return updated_at, name, (name, "")

    async def iterate_pages(self, ids: list[str]) -> Pages:
        """Items in the order of their ids, without those that were deleted meanwhile."""
        for some in _split_chunks(ids):
            rows = await asyncio.gather(*map(self._read_row, some))
            yield [it for it in rows if it is not None]

    async def _read_row(self, name: str) -> ItemRow | None:
        document, milliseconds, embeddings = await asyncio.gather(
            self._client.run_command("JSON.GET", self._item + name),
            self._client.run_command("PTTL", self._item + name),
            self._read_embeddings(name),
        )
        if document is None:
            return None
        ttl = milliseconds / _MILLISECONDS_A_MINUTE if milliseconds > 0 else None
        return _make_row(self._item + name, json.loads(document), ttl, embeddings)

    async def _read_embeddings(self, name: str) -> list[list[float]]:
        """Return the embedding, or none; ``RedisStore`` keeps one of each item."""
        key = self._vector + name
        kind = await self._client.run_command("TYPE", key)
        if kind == b"none":
            return []
        if kind == b"hash":
            packed = await self._client.run_command("HGET", key, "embedding")
            return [vectors.unpack(packed)] if packed else []
        found: list[list[float]] = json.loads(
            await self._client.run_command("JSON.GET", key, "$.embedding") or "[]"
        )
        return found


def _split_chunks(ids: list[str]) -> list[list[str]]:
    return [ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE)]


def _make_row(
    name: str, document: Any, ttl: float | None, embeddings: list[list[float]]
) -> ItemRow:
    try:
        value = document["value"]
        is_wrapped = isinstance(value, dict) and value.keys() == _WRAPPED
        return ItemRow(
            prefix=re.sub(r"\\(.)", r"\1", document["prefix"]),
            key=document["key"],
            value=json.dumps(value),
            created_at=from_microseconds(document["created_at"]),
            updated_at=from_microseconds(document["updated_at"]),
            expires_at=None,
            ttl_minutes=ttl,
            embeddings=embeddings,
            problem="its value contains Python objects; a store has JSON only"
            if is_wrapped
            else "",
        )
    except (KeyError, TypeError, OverflowError):
        problem = "it is not a document of RedisStore"
        return ItemRow("", name, "", EPOCH, EPOCH, None, None, [], problem)


class ItemRow(NamedTuple):
    """An item as it is stored, with its embeddings in the order of their fields."""

    prefix: str
    key: str
    value: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    ttl_minutes: float | None
    embeddings: list[list[float]]
    problem: str = ""
    """The reason why it cannot be imported."""

    @property
    def namespace(self) -> tuple[str, ...]:
        """As LangGraph reads it."""
        return tuple(self.prefix.split(".")) if self.prefix else ()


Pages: TypeAlias = "AsyncIterator[list[ItemRow]]"
