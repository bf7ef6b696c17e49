"""Our LangGraph saver and langgraph's own ones, and the chat graph that is run on each of them."""

from __future__ import annotations

import operator
import random
import sqlite3
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages

from benchmarks import machine, workloads
from locus_store.adapters.langgraph import LangGraphSaver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

POOL = 10
THEIRS, OURS = "langgraph", "locus-store"
SIDES = (THEIRS, OURS)
TEXTS = [
    (workloads.prose(random.Random(2 * it), 400), workloads.prose(random.Random(2 * it + 1), 1000))
    for it in range(1000)
]
"""The text of a turn: 1.4 KB."""


# --- places


class PostgreSQL:
    """Databases of one server."""

    title = "PostgreSQL"
    peer = "langgraph-checkpoint-postgres"

    def __init__(self, running: Any) -> None:
        self._running = running

    def new(self) -> str:
        return str(self._running.new_database())

    def url(self, name: str) -> str:
        return str(self._running.url(name))

    def drop(self, name: str) -> None:
        self._running.drop_database(name)

    def total(self, name: str) -> int:
        """Bytes of tables, indexes and TOAST, as they are: with what updates left behind."""
        return int(
            self._running.value(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'",
                database=name,
            )
        )

    def parts(self, name: str) -> str:
        """Megabytes of rows, with TOAST, and of indexes, by table."""
        rows = self._running.fetch(
            "SELECT relname, pg_table_size(c.oid), pg_indexes_size(c.oid) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'public' AND pg_total_relation_size(c.oid) > 65536 ORDER BY 2 DESC",
            database=name,
        )
        return ", ".join(f"{it[0]} {it[1] / 1e6:.2f} + {it[2] / 1e6:.2f}" for it in rows)

    def packed(self, name: str) -> int:
        """The same after ``VACUUM FULL``."""
        self._running.execute("VACUUM FULL", name)
        return self.total(name)

    def settings(self) -> str:
        names = ("fsync", "synchronous_commit", "full_page_writes")
        shown = ", ".join(f"{it}={self._running.value(f'SHOW {it}')}" for it in names)
        return f"PostgreSQL {self._running.value('SHOW server_version')}: {shown}"

    @asynccontextmanager
    async def theirs(self, name: str) -> AsyncIterator[Any]:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg_pool import AsyncConnectionPool

        pool: Any = AsyncConnectionPool(
            self.url(name), min_size=POOL, max_size=POOL, kwargs=_connecting(), open=False
        )
        async with pool:
            await pool.wait()
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            yield saver

    @contextmanager
    def theirs_in_threads(self, name: str) -> Iterator[Any]:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg_pool import ConnectionPool

        pool: Any = ConnectionPool(
            self.url(name), min_size=POOL, max_size=POOL, kwargs=_connecting(), open=False
        )
        with pool:
            pool.wait()
            yield PostgresSaver(pool)

    def ours(self, name: str) -> LangGraphSaver:
        return LangGraphSaver.from_url(self.url(name), pool_size=POOL)


class SQLite:
    """Files of one directory."""

    title = "SQLite"
    peer = "langgraph-checkpoint-sqlite"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0

    def new(self) -> str:
        self._made += 1
        return str(self._directory / f"{self._made}.db")

    def url(self, name: str) -> str:
        return f"sqlite:///{name}"

    def drop(self, name: str) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(name + ending).unlink(missing_ok=True)

    def total(self, name: str) -> int:
        """Bytes of the file and its log, after closing."""
        return machine.disk_bytes(Path(name))

    def parts(self, name: str) -> str:
        """Megabytes of payloads, by table."""
        with sqlite3.connect(name) as database:
            tables = [
                row[0]
                for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            found = {it: _payload_bytes(database, it) for it in tables}
        database.close()
        return ", ".join(f"{it} {size / 1e6:.2f}" for it, size in found.items() if size > 65536)

    def packed(self, name: str) -> int:
        """The same after ``VACUUM``."""
        with sqlite3.connect(name) as database:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        return self.total(name)

    def settings(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}: journal_mode=WAL, synchronous=FULL"

    @asynccontextmanager
    async def theirs(self, name: str) -> AsyncIterator[Any]:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(name) as saver:
            await saver.setup()
            async with saver.conn.execute("PRAGMA synchronous") as found:
                row = await found.fetchone()
            if row is None or row[0] != 2:
                raise SystemExit("their connections do not write with synchronous=FULL")
            yield saver

    @contextmanager
    def theirs_in_threads(self, name: str) -> Iterator[Any]:
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(name) as saver:
            saver.setup()
            yield saver

    def ours(self, name: str) -> LangGraphSaver:
        return LangGraphSaver.from_url(self.url(name))


Place = PostgreSQL | SQLite


def _payload_bytes(database: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    lengths = " + ".join(f'coalesce(length(CAST("{it}" AS BLOB)), 0)' for it in columns)
    return int(database.execute(f"SELECT coalesce(sum({lengths}), 0) FROM {table}").fetchone()[0])


def _connecting() -> dict[str, Any]:
    """As langgraph's documentation has it."""
    from psycopg.rows import dict_row

    return {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@asynccontextmanager
async def opened(place: Place, side: str, name: str) -> AsyncIterator[Any]:
    """A side's saver, connected."""
    if side == THEIRS:
        async with place.theirs(name) as saver:
            yield saver
        return
    async with place.ours(name) as saver:
        await saver.asetup()
        yield saver


@contextmanager
def opened_in_threads(place: Place, side: str, name: str) -> Iterator[Any]:
    """A side's saver for the sync methods."""
    if side == THEIRS:
        with place.theirs_in_threads(name) as saver:
            yield saver
        return
    with place.ours(name) as saver:
        saver.setup()
        yield saver


# --- times


class Calls:
    """Seconds of a saver's calls by a graph, by name without the ``a`` of the async ones."""

    def __init__(self, saver: Any) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        for name in ("put", "put_writes", "get_tuple"):
            setattr(saver, name, self._sync(getattr(saver, name), self.seconds[name]))
            setattr(saver, f"a{name}", self._async(getattr(saver, f"a{name}"), self.seconds[name]))

    @staticmethod
    def _sync(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            found = call(*args, **kwargs)
            seconds.append(time.perf_counter() - begin)
            return found

        return timed

    @staticmethod
    def _async(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        @wraps(call)
        async def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            found = await call(*args, **kwargs)
            seconds.append(time.perf_counter() - begin)
            return found

        return timed


# --- graphs


class Dicts(TypedDict):
    """Messages as plain data."""

    messages: Annotated[list[dict[str, Any]], operator.add]


class Messages(TypedDict):
    """LangChain's messages."""

    messages: Annotated[list[AnyMessage], add_messages]


KINDS: dict[str, type[Any]] = {"dicts": Dicts, "LangChain messages": Messages}


def message(kind: type[Any], role: str, turn: int) -> Any:
    text = TEXTS[turn % len(TEXTS)][role == "assistant"]
    if kind is Dicts:
        return {"role": role, "content": text}
    made = HumanMessage if role == "user" else AIMessage
    return made(text, id=f"{role}-{random.Random(turn).getrandbits(96):024x}")


def chat(kind: type[Any], saver: Any) -> Any:
    """A graph of one node, which answers: three checkpoints a turn, and two calls of writes."""

    def answer(state: dict[str, Any]) -> dict[str, Any]:
        turn = len(state["messages"]) // 2
        return {"messages": [message(kind, "assistant", turn)]}

    async def answered(state: dict[str, Any]) -> dict[str, Any]:
        return answer(state)

    builder: Any = StateGraph(kind)
    builder.add_node("answer", RunnableLambda(answer, answered))
    builder.set_entry_point("answer")
    return builder.compile(checkpointer=saver)


def config(thread_id: str = "long") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def asked(kind: type[Any], turn: int) -> dict[str, Any]:
    return {"messages": [message(kind, "user", turn)]}


async def say(graph: Any, kind: type[Any], turn: int, thread_id: str = "long") -> Any:
    """Run one turn; each checkpoint is saved before the next step begins."""
    return await graph.ainvoke(asked(kind, turn), config(thread_id), durability="sync")
