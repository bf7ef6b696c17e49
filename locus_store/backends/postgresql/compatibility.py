"""Trials of a PostgreSQL-compatible service: features that the statements use, then the library.

The tables of a run have a prefix of their own and are dropped at its end. A run that is killed
leaves them; the next one names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from secrets import token_hex
from typing import Any, Final, NamedTuple

from locus_store.backends.postgresql import dsn
from locus_store.backends.postgresql.backend import PostgreSQLBackend
from locus_store.backends.postgresql.connecting import connect
from locus_store.backends.postgresql.failures import READ_ONLY, STATEMENT_REMEDIES, get_sqlstate
from locus_store.backends.postgresql.options import URL_OPTIONS, parse_place
from locus_store.backends.postgresql.store import PostgreSQLMessageLog, PostgreSQLStore
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import LocusStoreError
from locus_store.types import PendingWrite
from locus_store.types.facts import Verdict
from locus_store.types.messages import NewMessage
from locus_store.types.options import URL_EXTRAS, read_query

SECONDS: Final = 30.0
"""Time limit of each trial, connecting included, and of the removal of the tables."""

PREFIX: Final = "locus_probe_"
"""Begins the names of the tables; a random part follows."""

_SHIFTS: Final = 4
"""Numbers of transactions between two of a session, for a pooler that takes turns."""

_TABLES: Final = "tables, identity columns, collation C"
_VECTORS: Final = "the extension vector (pgvector)"

_REMEDIES: Final = {
    "42501": "try again as the role that runs migrations",
    READ_ONLY: STATEMENT_REMEDIES[READ_ONLY],
    "26000": STATEMENT_REMEDIES["26000"],
}

_SERVICE: Final = """
SELECT version(), current_schema(), (SELECT count(*) FROM pg_namespace WHERE nspname = $1)
"""
_CREATED: Final = r"""
SELECT c.relname AS name, format(CASE c.relkind WHEN 'v' THEN 'VIEW %I.%I' ELSE 'TABLE %I.%I' END,
  n.nspname, c.relname) AS what
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'v') AND c.relname LIKE 'locus\_probe\_%'
UNION ALL SELECT nspname, format('SCHEMA %I', nspname) FROM pg_namespace
WHERE nspname LIKE 'locus\_probe\_%' ORDER BY what DESC
"""
"""The objects that runs have created: views, then tables, then schemas."""


class Step(NamedTuple):
    """A statement of a feature; see ``features.sql``."""

    text: str
    by_other: bool
    refused: str
    """SQLSTATE; ``""``: it must succeed."""


class Feature(NamedTuple):
    """A feature of PostgreSQL that the library's statements use."""

    name: str
    needed_for: str
    is_required: bool
    """Nothing works without it; else only what it is needed for."""

    steps: tuple[Step, ...] = ()


class Trial(NamedTuple):
    """A feature, or work of the library, and how the service answered."""

    name: str
    needed_for: str
    is_required: bool
    verdict: Verdict
    """``fail``: it is missing and required; ``warn``: missing; ``info``: not tried."""

    answer: str


class AnswerError(Exception):
    """The service accepts a statement, and answers otherwise than PostgreSQL."""


def read_features() -> list[Feature]:
    """Return the features of ``features.sql``, in its order."""
    text = files("locus_store.backends.postgresql").joinpath("features.sql").read_text("utf-8")
    return [_read_feature(it) for it in text.split("\n--- ")[1:]]


def _read_feature(text: str) -> Feature:
    heading, _, statements = text.partition("\n")
    name, needed_for, *optional = heading.split(" | ")
    steps = (_read_step(it.strip()) for it in statements.split(";\n") if it.strip())
    return Feature(name, needed_for, not optional, tuple(steps))


def _read_step(text: str) -> Step:
    notes = [it for it in text.splitlines() if it.startswith("-- ")]
    refused = [it.partition(": ")[2] for it in notes if it.startswith("-- refused")]
    statement = text.removeprefix("\n".join(notes)).strip()
    return Step(statement, "-- other session" in notes, "".join(refused))


async def try_service(url: str, report: Callable[[], object] = bool) -> list[Trial]:
    """Return the trials of the service that a URL leads to, the first ones those of features.

    Args:
        url: As of ``PostgreSQLBackend``. Of its options, those on the schema and a pooler matter.
        report: Called after each trial.

    Raises:
        InvalidArgumentError: The URL is not valid.
    """
    service = _Service(url)
    found = [await service.describe()]
    if found[0].verdict == "fail":
        return found
    try:
        for feature in read_features():
            needs_table = "{place}items" in "".join(it.text for it in feature.steps)
            if needs_table and _is_missing(found, _TABLES):
                found.append(_skip(feature))
            else:
                found.append(await _try(feature, partial(service.run, feature.steps)))
            report()
        found.append(await service.try_prepared())
        found += await service.try_library(has_vectors=not _is_missing(found, _VECTORS))
    finally:
        found.append(await service.clean())
    return found


def _is_missing(trials: list[Trial], name: str) -> bool:
    return any(it.name == name and it.verdict != "ok" for it in trials)


def _skip(feature: Feature) -> Trial:
    return Trial(*feature[:3], "info", "not tried, because it needs what is missing")


async def _try(feature: Feature, work: Callable[[], Awaitable[None]]) -> Trial:
    """Return the trial of a feature by work that raises if it is missing."""
    try:
        async with asyncio.timeout(SECONDS):
            await work()
    except Exception as exc:  # noqa: BLE001  (it is the answer)
        answer = str(exc) or f"no answer within {SECONDS:g} s"
        if not isinstance(exc, LocusStoreError):  # which says it all
            state = get_sqlstate(exc)
            answer = ": ".join(it for it in (state, answer, _REMEDIES.get(state)) if it)
        return Trial(*feature[:3], "fail" if feature.is_required else "warn", answer)
    return Trial(*feature[:3], "ok", "works")


class _Service:
    """A service, and the names of what a run creates in it."""

    def __init__(self, url: str) -> None:
        named, query = parse_place(url)
        given = read_query((URL_OPTIONS, *URL_EXTRAS), query)
        self._dsn = named["dsn"]
        self._target = dsn.parse(self._dsn, ours=dsn.OURS)
        pooled = given.get("pgbouncer", False)
        self._is_pooled = not dsn.compute_cache_size(self._target.options, pgbouncer=pooled)
        self._prefix = f"{PREFIX}{token_hex(4)}_"
        self._schema = given.get("schema") or given.get("schema_name")
        self._place = self._prefix
        """Begins the name of a table, with its schema, once the service was described."""

    @asynccontextmanager
    async def _connect(self, statement_cache_size: int = 0) -> AsyncIterator[Any]:
        connection = await connect(
            self._target, timeout=SECONDS, statement_cache_size=statement_cache_size
        )
        try:
            yield connection
        finally:
            connection.terminate()  # closing would wait for an answer

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Any]:
        """Begin a transaction that calls no function of another role; it ends with the session."""
        async with self._connect() as connection:
            await connection.fetch("BEGIN ISOLATION LEVEL READ COMMITTED")
            await connection.fetch("SET LOCAL search_path TO pg_catalog")
            await connection.fetch(f"SET LOCAL statement_timeout TO {round(SECONDS * 1000)}")
            yield connection

    async def describe(self) -> Trial:
        """Return what the service calls itself; a ``fail``: it cannot be reached."""
        versions: list[str] = []

        async def work() -> None:
            async with self._connect() as connection:
                version, schema, count = await connection.fetchrow(_SERVICE, self._schema)
            if self._schema is not None and not count:
                raise AnswerError(
                    f"there is no schema {self._schema!r}; create it, or leave schema= out"
                )
            quoted = str(self._schema or schema or "public").replace('"', '""')
            self._place = f'"{quoted}".{self._prefix}'
            versions.append(str(version))

        trial = await _try(Feature("service", "everything", True), work)
        return trial._replace(verdict="info", answer=versions[0]) if versions else trial

    async def run(self, steps: tuple[Step, ...]) -> None:
        """Run the statements of a feature; raise if an answer is not that of PostgreSQL."""
        async with self._begin() as one:
            for step in steps:
                text = step.text.replace("{prefix}", self._prefix)
                text = text.replace("{place}", self._place)
                if not step.by_other:
                    await _run(one, text, step.refused)
                    continue
                async with self._begin() as other:
                    await _run(other, text, step.refused)
                    if not step.refused:
                        await other.fetch("COMMIT")

    async def try_prepared(self) -> Trial:
        """Try a prepared statement while a pooler may give each transaction another connection."""
        needed_for = "everything, unless the URL has pgbouncer=true"
        feature = Feature("prepared statements beyond a transaction", needed_for, True)
        if self._is_pooled:
            return Trial(*feature[:3], "info", "not tried, because the URL has pgbouncer=true")

        async def work() -> None:
            async with self._connect(statement_cache_size=1) as one, self._connect() as other:
                for number in range(_SHIFTS):
                    await one.fetch("SELECT 1")
                    for text in (*["SELECT 1"] * number, "BEGIN"):
                        await other.fetch(text)
                    await one.fetch("SELECT 1")
                    await other.fetch("ROLLBACK")

        return await _try(feature, work)

    async def try_library(self, *, has_vectors: bool) -> list[Trial]:
        """Try the work of the library in tables of its own; without the tables nothing is tried."""
        backend = PostgreSQLBackend(
            self._dsn,
            prefix=self._prefix,
            schema=self._schema,
            pgbouncer=self._is_pooled,
            statement_timeout_seconds=SECONDS,
        )
        found: list[Trial] = []
        async with backend:
            for feature, work in _WORKS.items():
                is_missing = bool(found) and found[0].verdict != "ok"
                if is_missing or (work is _embed and not has_vectors):
                    found.append(_skip(feature))
                else:
                    found.append(await _try(feature, partial(work, backend)))
        return found

    async def clean(self) -> Trial:
        """Drop what the run has created, and name what earlier runs have left."""
        feature = Feature("removal of the tables", "", True)
        left: list[str] = []

        async def work() -> None:
            async with self._begin() as connection:
                for name, what in await connection.fetch(_CREATED):
                    if name.startswith(self._prefix):
                        await connection.fetch(f"DROP {what}")
                    else:
                        left.append(what)
                await connection.fetch("COMMIT")

        trial = await _try(feature, work)
        if trial.verdict == "fail":
            answer = f"{trial.answer}; drop what begins with {self._prefix}"
            return trial._replace(answer=answer)
        if left:
            answer = f"an earlier run was killed, or another one runs: DROP {'; DROP '.join(left)}"
            return trial._replace(verdict="warn", answer=answer)
        return trial


async def _save(backend: PostgreSQLBackend) -> None:
    checkpointer = StorageBackendAdapter(backend, state_type=dict)
    await checkpointer.save({"n": 1}, "a", "first", metadata={"stage": "new"})
    state = await checkpointer.load("a") or {}
    await checkpointer.save(state | {"n": 2}, "a", "second")
    await asyncio.gather(*(checkpointer.save({"said": ["Porto"]}, f"t{n}") for n in range(5)))
    _require(await checkpointer.load("a"), {"n": 2})
    _require(await checkpointer.load("a", "first"), {"n": 1})
    _require(await checkpointer.list_checkpoints("a"), ["second", "first"])
    await backend.put_writes("a", "second", [PendingWrite("task", 0, "channel", "json", b"1")])
    await backend.put_writes("a", "third", [PendingWrite("task", 0, "channel", "json", b"1")])
    _require([it.payload for it in await backend.get_writes("a", "second")], [b"1"])


async def _find(backend: PostgreSQLBackend) -> None:
    checkpointer = StorageBackendAdapter(backend, state_type=dict)
    _require(await backend.count(), 6)
    _require(len(await checkpointer.list_threads(pattern="t*")), 5)
    _require(len(await checkpointer.list_with_metadata()), 6)
    _require(len(await checkpointer.search("porto")), 5)
    _require(await backend.tagged("stage", "new"), [("a", "", "first")])
    _require(len(await backend.query("stage", "new")), 1)


async def _remove(backend: PostgreSQLBackend) -> None:
    checkpointer = StorageBackendAdapter(backend, state_type=dict, keep_last=1)
    await checkpointer.copy_thread("a", "b")
    await checkpointer.save({"n": 3}, "b", "third")
    _require(await checkpointer.list_checkpoints("b"), ["third"])
    _require(await checkpointer.delete("a", "second"), True)
    _require(await checkpointer.delete("b"), True)
    await backend.renew("a", 60)
    _require(await backend.expire(), 0)
    _require(await backend.vacuum(1), 0)


async def _log(backend: PostgreSQLBackend) -> None:
    log = PostgreSQLMessageLog(backend=backend)
    await log.append("a", [NewMessage("one", message_id="1"), NewMessage("two", message_id="2")])
    await log.append("a", [NewMessage("three", message_id="2")])
    _require([it.content for it in await log.load("a") or ()], ["one", "three"])
    await log.remove("a", ["1"])
    _require(await log.delete("a"), True)


async def _store(backend: PostgreSQLBackend) -> None:
    store = PostgreSQLStore(backend=backend)
    await store.put(("n",), "k", {"a": [1]}, {"tag": "x"}, ttl_seconds=60)
    await store.put_batch([(("n", "m"), f"{n}", {"text": "Porto", "n": n}) for n in range(3)])
    found = await store.search(("n",), "porto", {"n": {"$gte": 1}})
    _require(sorted(it.key for it in found), ["1", "2"])
    await store.touch(("n",), "k")
    _require(await store.get(("n",), "k"), {"a": [1]})
    _require(await store.list_namespaces(), [("n",), ("n", "m")])
    _require(await store.delete(("n",), "k"), True)
    _require(await store.clear_namespace((), recursive=True), 3)


async def _index(backend: PostgreSQLBackend) -> None:
    await backend.create_search_index()
    checkpointer = StorageBackendAdapter(backend, state_type=dict)
    await checkpointer.save({"said": ["Lisbon"]}, "t0")
    _require(len(await checkpointer.search("lisbon")), 1)


async def _embed(backend: PostgreSQLBackend) -> None:
    store = PostgreSQLStore(backend=backend, dimension=3)
    await store.put_with_embedding(("n",), "k", 1, [1.0, 0.0, 0.0])
    _require(len(await store.search_by_embedding((), [1.0, 0.0, 0.0])), 1)


_WORKS: Final[dict[Feature, Callable[[PostgreSQLBackend], Awaitable[None]]]] = {
    Feature("the tables of this release", "everything", True): PostgreSQLBackend.open,
    Feature("saves, loads, pending writes", "checkpointers and savers", True): _save,
    Feature("lists, queries, search", "checkpointers and savers", True): _find,
    Feature("copies, deletions, retention", "checkpointers and savers", True): _remove,
    Feature("message logs", "message logs", True): _log,
    Feature("stores", "stores", True): _store,
    Feature("the search index", "fast search", False): _index,
    Feature("embeddings", "embeddings of a store", False): _embed,
}
"""Work of the library, in the order in which it finds what it needs."""


def _require(answer: object, wish: object) -> None:
    if answer != wish:
        raise AnswerError(f"the library expects {wish!r}, and finds {answer!r}")


async def _run(connection: Any, text: str, state: str) -> None:
    """Run a statement of a feature, and check its answer; ``state`` is of a refusal."""
    shown = " ".join(text.split())
    try:
        rows = await connection.fetch(text)
    except Exception as exc:
        if not state or get_sqlstate(exc) != state:
            raise
        return
    if state:
        raise AnswerError(f"accepted, and should be refused with {state}: {shown}")
    if rows and rows[0][0] is False:
        raise AnswerError(f"accepted, and the answer is false: {shown}")
