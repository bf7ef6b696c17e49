"""The keys of LangGraph's ``RedisStore`` and ``AsyncRedisStore``: JSON documents. Only read."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from locus_store.errors import SchemaError
from locus_store.values import vectors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from locus_store.backends.redis.connections import LoopClient

PREFIXES: Final = {"store_prefix": "store", "vector_prefix": "store_vectors"}
"""Options of ``RedisStore`` with their defaults."""

AT_ONCE: Final = 32
"""Keys that are read at once."""

_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
"""A ULID, which ``RedisStore`` gives to each put."""

_WRAPPED: Final = {"__serde_type__", "__serde_data__"}
"""Names in a value that was not JSON."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_A_MINUTE: Final = 60_000


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[tuple[str, Pages]]:
    """The items behind a URL, which may end in ``?store_prefix=…&vector_prefix=…``.

    Raises:
        SchemaError: There are none.
    """
    from locus_store.backends.redis import addresses  # noqa: PLC0415  (an extra)

    plain, prefixes = _parted(url)
    connections = addresses.connect(plain)
    try:
        client = await connections.get_client()
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


def _parted(url: str) -> tuple[str, dict[str, str]]:
    """Part a URL from the prefixes in it."""
    place, _, query = url.partition("?")
    options = [it.partition("=") for it in query.split("&") if it]
    named = {name: unquote(value) for name, _, value in options if name in PREFIXES}
    rest = "&".join("".join(it) for it in options if it[0] not in PREFIXES)
    return f"{place}?{rest}" if rest else place, PREFIXES | named


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
        for some in _chunks([it for it in names if _ID.fullmatch(it)]):
            heads += await asyncio.gather(*map(self._head, some))
        newest: dict[tuple[str, str], str] = {}
        for _, name, item in sorted(heads):
            newest.pop(item, None)
            newest[item] = name
        return list(newest.values())

    async def _head(self, name: str) -> tuple[float, str, tuple[str, str]]:
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
        for some in _chunks(ids):
            rows = await asyncio.gather(*map(self._row, some))
            yield [it for it in rows if it is not None]

    async def _row(self, name: str) -> ItemRow | None:
        document, milliseconds, embeddings = await asyncio.gather(
            self._client.run_command("JSON.GET", self._item + name),
            self._client.run_command("PTTL", self._item + name),
            self._embeddings(name),
        )
        if document is None:
            return None
        ttl = milliseconds / _MILLISECONDS_A_MINUTE if milliseconds > 0 else None
        return _row(self._item + name, json.loads(document), ttl, embeddings)

    async def _embeddings(self, name: str) -> list[list[float]]:
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


def _chunks(ids: list[str]) -> list[list[str]]:
    return [ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE)]


def _row(name: str, found: Any, ttl: float | None, embeddings: list[list[float]]) -> ItemRow:
    try:
        value = found["value"]
        is_wrapped = isinstance(value, dict) and value.keys() == _WRAPPED
        return ItemRow(
            prefix=re.sub(r"\\(.)", r"\1", found["prefix"]),
            key=found["key"],
            value=json.dumps(value),
            created_at=_moment(found["created_at"]),
            updated_at=_moment(found["updated_at"]),
            expires_at=None,
            ttl_minutes=ttl,
            embeddings=embeddings,
            problem="its value contains Python objects; a store has JSON only"
            if is_wrapped
            else "",
        )
    except (KeyError, TypeError, OverflowError):
        problem = "it is not a document of RedisStore"
        return ItemRow("", name, "", _EPOCH, _EPOCH, None, None, [], problem)


def _moment(microseconds: float) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


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
