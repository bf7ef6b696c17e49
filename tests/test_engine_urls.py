"""URLs beside an engine, a pool or a client of the caller's, which have a place of their own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from locus_store import (
    InvalidArgumentError,
    open_checkpointer,
    open_message_log,
    open_saver,
    open_store,
)

pytestmark = pytest.mark.anyio

ENGINES = {
    "file": ("sqlite+aiosqlite:////tmp/app.db", ("engine",)),
    "memory": ("sqlite+aiosqlite://", ("engine",)),
    "oracle": ("oracle+oracledb_async://u:p@h:1521/?service_name=x", ("engine", "pool")),
    "postgresql": ("postgresql+asyncpg://u:p@h:5432/d", ("engine", "pool")),
}
OPENING = (open_checkpointer, open_message_log, open_saver, open_store)
ADAPTERS = {
    "adk": ("LocusSessionService",),
    "agent_framework": ("LocusCheckpointStorage", "LocusHistoryProvider"),
    "claude_agent": ("LocusSessionStore",),
    "langgraph": ("LangGraphSaver", "LangGraphStore"),
    "openai_agents": ("LocusSession",),
    "pydantic_ai": ("LocusConversationStore",),
    "strands": ("LocusSessionRepository",),
}


@pytest.mark.parametrize("opening", OPENING)
@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("file", "sqlite://"),
        ("file", "sqlite://?tenant=acme"),
        ("file", "sqlite:////tmp/app.db"),
        ("memory", "sqlite://"),
        ("memory", "sqlite:///:memory:"),
        ("oracle", "oracle://"),
        ("oracle", "oracle://?schema=agents"),
        ("postgresql", "postgresql://"),
        ("postgresql", "postgres://?tenant=acme"),
        ("postgresql", "postgresql://u:other@h:5432/d?schema=agents"),
    ],
)
def test_a_url_beside_an_engine_selects_the_kind(opening: Any, kind: str, url: str) -> None:
    opening(url, engine=create_async_engine(ENGINES[kind][0]))


@pytest.mark.parametrize("opening", OPENING)
@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("file", "sqlite:///other.db"),
        ("file", "sqlite:///:memory:?tenant=acme"),
        ("memory", "sqlite:///other.db"),
        ("oracle", "oracle://u:p@alias"),
        ("oracle", "oracle://u:p@h:1521/x"),
        ("postgresql", "host=h dbname=d"),
        ("postgresql", "postgresql:///d"),
        ("postgresql", "postgresql://u:secret@h:5432/other"),
        ("postgresql", "postgresql://u:secret@h:5432/d?sslmode=require"),
        ("postgresql", "postgresql://?host=/tmp"),
        ("postgresql", "postgresql://u@a,b/d"),
    ],
)
def test_another_place_beside_an_engine_is_refused(opening: Any, kind: str, url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"write \w+:// beside engine=") as told:
        opening(url, engine=create_async_engine(ENGINES[kind][0]))
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("opensearch://host/index", "client"),
        ("oracle://u:p@alias", "pool"),
        ("postgresql://u@h/d", "pool"),
        ("redis://host", "client"),
    ],
)
def test_a_place_beside_a_pool_or_a_client_is_refused(url: str, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"write \w+:// beside {name}="):
        open_checkpointer(url, **{name: object()})  # type: ignore[misc]  # a name of either kind


async def test_a_pool_or_a_client_has_the_place(redis_url: str) -> None:
    asyncpg, redis = import_module("asyncpg"), import_module("redis.asyncio")
    open_checkpointer("postgresql://", pool=asyncpg.create_pool("postgresql://u@h/d"))
    async with redis.Redis.from_url(redis_url) as client:
        checkpointer = open_checkpointer("redis://", client=client, state_type=dict)
        await checkpointer.save({"n": 1}, "thread")
        assert await client.keys("*") != []


def test_a_client_of_opensearch_leaves_the_index_to_the_url() -> None:
    client = import_module("opensearchpy").OpenSearch("http://host:9200")
    opened = open_checkpointer("opensearch:///threads", client=client)
    assert repr(opened.backend) == "OpenSearchBackend(\"index 'threads' of the given client\")"


@pytest.mark.parametrize("options", [{"path": "a.db"}, {"busy_timeout_seconds": 1.0}])
def test_options_that_an_engine_overrides_are_refused(options: dict[str, Any]) -> None:
    made = import_module("locus_store.backends.sqlite").sqlite_checkpointer
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        made(engine=create_engine("sqlite://"), **options)


@pytest.mark.parametrize(("module", "name"), [(it, one) for it in ADAPTERS for one in ADAPTERS[it]])
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_every_adapter_takes_an_engine(module: str, name: str, kind: str) -> None:
    adapter = getattr(import_module(f"locus_store.adapters.{module}"), name)
    names = ("session",) if name == "LocusSession" else ()
    where = ENGINES[kind][0]
    engine = create_async_engine(where)
    same = where.replace("+asyncpg", "").replace("+aiosqlite", "")
    for url in (same, f"{same.partition('://')[0]}://"):
        adapter.from_url(*names, url, engine=engine)
    with pytest.raises(InvalidArgumentError, match="names another place"):
        adapter.from_url(*names, f"{same}-other", engine=engine)
