"""What the databases of ``tests/data`` hold, and what a later release has to do with it.

Before a release ``PYTHONPATH=tests python tests/kept_database.py`` writes them again for the newest
revision; those that a release has written stay as they are.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from servers import PostgreSQL

from locus_store import NewMessage, PostgreSQLBackend, SQLiteBackend
from locus_store.backends import (
    PostgreSQLMessageLog,
    PostgreSQLStore,
    SQLiteMessageLog,
    SQLiteStore,
)
from locus_store.sql.schema import status
from locus_store.versions import segments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DATA = Path(__file__).parent / "data"
FIRST, SECOND = {"text": "one", "list": [1]}, {"text": "two", "list": [1, 2.0, None]}
METADATA = {"k": ["a", {"n": 1}], "nul": "\0"}
ITEM = {"exact": [1e16, -0.0, "\0\1", None]}
CONTENTS = [{"said": "h\u00e9llo\0"}, [1, 2.0, None]]
TTL_SECONDS = 10**11
TURNS = 30


class Opened(NamedTuple):
    """The three parts of a database."""

    backend: Any
    store: Any
    log: Any


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Opened]:
    """Open them over one pool."""
    is_file = url.startswith("sqlite:///")
    make = SQLiteBackend if is_file else PostgreSQLBackend
    store, log = (
        (SQLiteStore, SQLiteMessageLog) if is_file else (PostgreSQLStore, PostgreSQLMessageLog)
    )
    async with AsyncExitStack() as stack:
        target: Any = url.removeprefix("sqlite:///")
        backend = await stack.enter_async_context(make(target, **options))
        yield Opened(backend, store(backend=backend), log(backend=backend))


def messages(turn: int) -> list[str]:
    """The messages of a version of the chain."""
    return [f"message {it} " * 20 for it in range(turn + 1)]


async def fill(url: str) -> None:
    """Write two threads, one with joined records, items and message logs."""
    async with opened(url) as it:
        await it.backend.save("/kept", FIRST, checkpoint_id="v1")
        await it.backend.save("/kept", SECOND, checkpoint_id="v2", metadata=METADATA)
        for turn in range(TURNS):
            state = {"messages": messages(turn)}
            await it.backend.save("chain", state, checkpoint_id=f"c{turn}")
        with mock.patch.object(segments, "RECORDS", TURNS // 2 - 1):
            await it.backend._join("chain", "")
        await it.store.put(("kept", "/a"), "k", ITEM, metadata={"k": "\0"}, ttl_seconds=TTL_SECONDS)
        for _ in range(2):
            await it.store.put((), "none", None)
        said = NewMessage(CONTENTS[0], "user", "m1", {"k": 1.0}, "text\0")
        await it.log.append("/kept", [said, NewMessage(CONTENTS[1], "tool", "m2")])
        await it.log.append("/kept", [NewMessage("sub", message_id="m1")], namespace="/sub")
        await it.log.append("empty", [NewMessage("gone")])
        await it.log.clear("empty")


async def use(url: str, **options: Any) -> None:
    """Read all of it, and write to each part."""
    async with opened(url, **options) as it:
        await _use_versions(it.backend)
        item = await it.store.get_item(("kept", "/a"), "k")
        assert repr(item.value) == repr(ITEM)
        assert (item.metadata, item.ttl_seconds) == ({"k": "\0"}, TTL_SECONDS)
        assert await it.store.put((), "none", None) == 3
        log = await it.log.load("/kept")
        assert [it.content for it in log] == CONTENTS
        assert (log[0].metadata, log[0].text) == ({"k": 1.0}, "text\0")
        assert [it.content for it in await it.log.load("/kept", namespace="/sub")] == ["sub"]
        assert await it.log.load("empty") == []
        await it.log.append("/kept", [("again", "user", "m1"), ("more",)])
        assert [it.content for it in await it.log.load("/kept", newest=1)] == ["more"]


async def _use_versions(backend: Any) -> None:
    assert await backend.load("/kept", "v1") == FIRST
    assert await backend.load("/kept") == SECOND
    assert await backend.search("two") == ["/kept"]
    history = await backend.history("/kept")
    assert [(it.checkpoint_id, it.parent_id) for it in history] == [("v2", "v1"), ("v1", None)]
    assert history[0].metadata == METADATA
    for turn in range(TURNS):
        assert await backend.load("chain", f"c{turn}") == {"messages": messages(turn)}
    assert await backend.delete("chain", "c3")
    assert await backend.load("chain", "c4") == {"messages": messages(4)}
    await backend.save("chain", {"messages": ["another"]})
    assert await backend.load("chain") == {"messages": ["another"]}
    await backend.save("new", {"n": 1})  # a line's key is never used again
    assert await backend.delete("/kept", "v1")
    assert await backend.load("/kept") == SECOND


# --- writing them


def sqlite_dump() -> str:
    """Return a database of this release as SQL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.db"
        asyncio.run(fill(f"sqlite:///{path}"))
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def postgresql_dump() -> str:
    """Return one as SQL that every tested server takes: without settings of the session."""
    server = PostgreSQL("16")
    try:
        name = server.new_database()
        asyncio.run(fill(server.url(name)))
        plain = ("--inserts", "--no-owner", "--no-privileges")
        dumped = server.run("pg_dump", *plain, server.admin_url(name))
    finally:
        server.stop()
    left_out = re.compile(r"(SET |SELECT pg_catalog.set_config|--|\\|$)")
    return "".join(it for it in dumped.splitlines(keepends=True) if not left_out.match(it.strip()))


if __name__ == "__main__":
    for dialect, dump in (("sqlite", sqlite_dump), ("postgresql", postgresql_dump)):
        text = f"-- A database of revision {status.HEAD}, by tests/kept_database.py.\n{dump()}"
        (DATA / dialect / f"{status.HEAD}.sql").write_text(text)
