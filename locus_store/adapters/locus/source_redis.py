"""The keys of the Locus SDK's ``RedisBackend``: JSON strings below a prefix. Read-only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from locus_store.adapters.locus.records import (
    Content,
    Entry,
    FoundThread,
    KeyRow,
    compute_fingerprint,
    group_rows,
    make_changed_error,
    parse_object,
    parse_time,
    unwrap,
)
from locus_store.backends.redis import addresses
from locus_store.backends.redis.connections import LoopClient
from locus_store.errors import IntegrityError, InvalidArgumentError, LocusStoreError
from locus_store.values.times import EPOCH

PREFIXES: Final = ("locus:state:", "locus:checkpoint:")
"""Default prefixes of the SDK's ``redis_checkpointer`` and of its ``RedisBackend``."""

AT_ONCE: Final = 32
"""Keys that are read at once."""

_OPTION = re.compile(r"([?&])prefix=([^&#]*)&?")


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[SourceKeys]:
    """Open the reader for a URL, which may end in ``?prefix=…``."""
    asked = _OPTION.search(url)
    plain = _OPTION.sub(r"\1", url, count=1).rstrip("?&") if asked else url
    connections = addresses.connect(plain)
    try:
        keys = SourceKeys(await connections.get())
        await keys.choose(unquote(asked[2]) if asked else None)
        yield keys
    finally:
        await connections.close()


class SourceKeys:
    """Checkpoints sorted by their contents."""

    def __init__(self, client: LoopClient) -> None:
        self._client = client
        self._prefix = ""
        self._names: list[bytes] = []
        self._seen: dict[bytes, str] = {}
        self.shown = f"Redis {client.where}"

    async def choose(self, prefix: str | None) -> None:
        """Find the prefix in use.

        Raises:
            InvalidArgumentError: There are keys of both of the SDK's own.
        """
        found = {
            start: await self._list_keys(start)
            for start in (PREFIXES if prefix is None else (prefix,))
        }
        there = [it for it, names in found.items() if names] or list(found)[:1]
        if len(there) > 1:
            raise InvalidArgumentError(
                f"{self.shown} has keys of {' and '.join(map(repr, there))}; choose by ?prefix="
            )
        self._prefix, self._names = there[0], found[there[0]]
        self.shown += f", prefix {self._prefix!r}"

    async def _list_keys(self, prefix: str) -> list[bytes]:
        """Return the string keys below a prefix; this library's own keys are not strings."""
        pattern = re.sub(r"([\\*?\[\]^])", r"\\\1", prefix) + "*"

        async def scanned() -> set[bytes]:
            names = self._client.client.scan_iter(match=pattern, count=1000, _type="STRING")
            return {it async for it in names}

        return sorted(await self._client.retry(scanned))

    async def read_threads(self) -> dict[str, FoundThread]:
        rows: list[KeyRow] = []
        damaged: dict[str, LocusStoreError] = {}
        for at in range(0, len(self._names), AT_ONCE):
            names = self._names[at : at + AT_ONCE]
            values = await asyncio.gather(*(self._client.run_command("GET", it) for it in names))
            for name, value in zip(names, values, strict=True):
                if value is None:  # expired, or deleted meanwhile
                    continue
                try:
                    rows.append(self._make_row(name, value))
                except IntegrityError as exc:
                    damaged[self._decode_key(name)] = exc
        return group_rows(rows, damaged)

    def _decode_key(self, name: bytes) -> str:
        return name.decode(errors="surrogateescape")[len(self._prefix) :]

    def _make_row(self, name: bytes, value: bytes) -> KeyRow:
        key = self._decode_key(name)
        where = f"row {key!r}"
        data = parse_object(value, where)
        row = KeyRow.from_data(key, data, column_id=None, updated_at=EPOCH)
        self._seen[name] = row.fingerprint
        if row.is_index or row.saved_as is not None:
            return row
        # The SDK stored a state without its adapter; keys have no time.
        at = data.get("updated_at")
        return replace(row, updated_at=datetime.now(UTC) if at is None else parse_time(at, where))

    async def read(self, entry: Entry) -> Content:
        name = self._prefix.encode() + entry.key.encode(errors="surrogateescape")
        value = await self._client.run_command("GET", name)
        data = parse_object(value, entry.where) if value is not None else None
        if data is None or compute_fingerprint(data) != self._seen[name]:
            raise make_changed_error(entry)
        return unwrap(data, None, entry.where)
