"""Users' ids in a column of numbers, on request: ``locus-store db user-ids``."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from lazily import TESTS_RUN
from sqlalchemy.engine import URL

from locus_store import (
    InvalidArgumentError,
    MemoryBackend,
    NotOwnerError,
    PostgreSQLBackend,
    SchemaError,
    SQLiteBackend,
)
from locus_store.session import AgentState, Message, SessionCheckpointer
from locus_store.sql import migrate
from locus_store.sql.schema.tables import make_tables
from locus_store.sql.schema.user_ids import make_statements, render_sql, set_user_id_type
from locus_store.sql.threads.listing import _select_facts
from locus_store.transfer.archive import export_threads
from locus_store.transfer.copying import copy
from locus_store.transfer.verifying import verify
from locus_store.versions.archives import Problem

if TESTS_RUN:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

pytestmark = pytest.mark.anyio

LEAST, MOST = -(2**63), 2**63 - 1

MANY = """
INSERT INTO locus_threads (tenant, thread_id, user_id, name, created_at, active_at)
SELECT 'default', 'x' || n, n % 500, 'n', now(), date_trunc('minute', now() - n * '1 min'::interval)
FROM generate_series(1, 20000) n
"""


class Place:
    """A migrated database of SQLite or PostgreSQL."""

    def __init__(self, kind: str, place: Any) -> None:
        self.kind = kind
        self.url = str(place) if kind == "postgresql" else f"sqlite:///{place}"
        self._make = SQLiteBackend if kind == "sqlite" else PostgreSQLBackend
        self._place = place

    def open(self, **options: Any) -> Any:
        return self._make(self._place, **options)

    async def set(self, users: Any) -> bool:
        return await asyncio.to_thread(set_user_id_type, self.url, users)

    async def ask(self, query: str) -> list[Any]:
        """Return the rows of a query; the transaction is committed."""
        backend = self.open()

        def run(it: Any) -> list[Any]:
            found = it.connection.exec_driver_sql(query)
            return [tuple(row) for row in found] if found.returns_rows else []

        try:
            return list(await backend._write(run))
        finally:
            await backend.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    fixture = {"sqlite": "database_file", "postgresql": "migrated_database"}[request.param]
    return Place(request.param, request.getfixturevalue(fixture))


async def fill(backend: Any, *users: str) -> None:
    for user in users:
        await backend.claim_thread(f"of {user}", user, name=f"n{user}")
        await backend.save(f"of {user}", {"n": 1})
    await backend.save("free", {"n": 1})


async def test_ids_become_numbers_and_text_again(place: Place) -> None:
    backend = place.open()
    await fill(backend, "0", "-7", str(LEAST), str(MOST))
    before = [await backend.read_thread(it) for it in await backend.scan()]
    await backend.close()
    assert [await place.set("bigint"), await place.set("bigint")] == [True, False]
    assert (await place.ask("SELECT max(user_id), min(user_id) FROM locus_threads")) == [
        (MOST, LEAST)
    ]
    assert ("-7",) not in await place.ask("SELECT user_id FROM locus_heads")
    backend = place.open()
    assert [await backend.read_thread(it) for it in await backend.scan()] == before
    assert [it.user_id for it in await backend.threads_by_activity("-7")] == ["-7"]
    assert await backend.threads_by_activity("alice") == []
    assert await backend.threads_by_activity("007") == []
    assert await backend.threads_of(str(MOST)) == [f"of {MOST}"]
    assert (await backend.forget_user("alice"))["threads"] == 0
    await backend.claim_thread("of 0", "0")
    with pytest.raises(NotOwnerError):
        await backend.claim_thread("of 0", "1")
    assert await backend.damage() == []
    await backend.close()
    assert await place.set("string")
    backend = place.open()
    assert [await backend.read_thread(it) for it in await backend.scan()] == before
    await backend.claim_thread("t", "alice")
    await backend.close()


async def test_ids_that_do_not_fit_refuse_the_type(place: Place) -> None:
    for wrong in (
        "alice",
        "042",
        "+1",
        "-0",
        "1 ",
        "/1",
        "1.0",
        "½",
        str(MOST + 1),
        str(LEAST - 1),
    ):
        backend = place.open()
        await backend.claim_thread("t", wrong)
        await backend.close()
        with pytest.raises(SchemaError, match="nothing was changed"):
            await place.set("bigint")
        backend = place.open()
        assert (await backend.thread_facts("t")).user_id == wrong
        await backend.delete("t")
        await backend.close()
    backend = place.open()
    await backend.claim_thread("t", str(2**31))
    await backend.close()
    with pytest.raises(SchemaError, match="type int"):
        await place.set("int")
    assert await place.set("bigint")
    with pytest.raises(SchemaError, match="type int"):
        await place.set("int")


async def test_an_id_that_is_no_number_is_refused_before_anything_is_written(place: Place) -> None:
    await place.set("int")
    backend = place.open()
    for wrong in ("alice", "042", str(2**31)):
        for put in (backend.put_thread, backend.claim_thread):
            with pytest.raises(InvalidArgumentError, match="user_id"):
                await put("t", user_id=wrong)
    assert await backend.exists("t") is False
    memory = MemoryBackend()
    await memory.claim_thread("t", "alice")
    with pytest.raises(InvalidArgumentError, match="user_id"):
        await backend.write_thread(await memory.read_thread("t"))
    assert await backend.exists("t") is False
    await backend.close()


async def test_a_database_with_numbers_is_up_to_date(place: Place) -> None:
    await place.set("bigint")
    assert migrate.check(place.url).state == "ok"

    def differences(it: Any) -> list[Any]:
        ours = make_tables(users="bigint")
        options = {"include_object": migrate.include_ours(ours, place.kind), "compare_type": True}
        context = MigrationContext.configure(
            it.connection, opts={**options, "version_table": ours.version}
        )
        return [*compare_metadata(context, ours.metadata)]

    backend = place.open()
    assert await backend._write(differences) == []
    await backend.close()
    assert migrate.upgrade(place.url) == migrate.read_revision(place.url)


async def test_a_users_list_reads_the_index(place: Place) -> None:
    backend = place.open()
    await fill(backend, *(str(n) for n in range(50)))
    await backend.close()
    await place.set("bigint")
    if place.kind == "postgresql":
        await place.ask(MANY)
        await place.ask("ANALYZE locus_threads")
    backend = place.open()

    def planned(it: Any) -> str:
        query = _select_facts(it, "7", 10, place=None)
        shown = query.compile(dialect=it.connection.dialect, compile_kwargs={"literal_binds": True})
        explain = "EXPLAIN QUERY PLAN" if place.kind == "sqlite" else "EXPLAIN"
        return str(it.connection.exec_driver_sql(f"{explain} {shown}").all())

    plan = await backend._write(planned)
    await backend.close()
    assert "locus_threads_user" in plan


async def test_a_session_of_another_type_names_the_command(place: Place) -> None:
    backend = place.open()
    await fill(backend, "7")
    session = SessionCheckpointer(backend, user_id_type="bigint")
    with pytest.raises(SchemaError, match="locus-store db user-ids bigint"):
        await session.asetup()
    with pytest.raises(SchemaError, match="user_id_type='string'"):
        await session.aput_state({"thread_id": "t", "user_id": 7}, AgentState())
    assert await backend.exists("t") is False
    await session.arelease()
    await place.set("bigint")
    for users in ("string", "int"):
        async with place.open() as backend:
            session = SessionCheckpointer(backend, user_id_type=users)  # type: ignore[arg-type]
            with pytest.raises(SchemaError, match=f"locus-store db user-ids {users}"):
                await session.asetup()
    session = SessionCheckpointer(place.open(), user_id_type="bigint")
    config = {"thread_id": "t", "user_id": 7}
    await session.aput_state(config, AgentState())
    assert {it.user_id for it in await session.alist_threads({"user_id": 7})} == {7}
    with pytest.raises(NotOwnerError):
        await session.aput_state({**config, "user_id": 8}, AgentState())
    await session.arelease()


async def test_an_empty_database_takes_the_type_of_the_session(place: Place) -> None:
    sessions = [SessionCheckpointer(place.open(), user_id_type="bigint") for _ in range(4)]
    for it in sessions:
        await it.backend.open()
    await asyncio.gather(*(it.asetup() for it in sessions[:3]))
    for n, it in enumerate(sessions):
        await it.aput_state({"thread_id": f"t{n}", "user_id": n}, AgentState())
    assert len(await sessions[0].alist_threads({})) == 4
    for it in sessions:
        await it.arelease()
    assert await place.ask("SELECT min(user_id), max(user_id) FROM locus_threads") == [(0, 3)]
    backend = place.open(auto_migrate=False)
    with pytest.raises(SchemaError, match="db user-ids int"):
        await backend.require_user_id_type("int")
    await backend.close()


async def test_the_printed_sql_does_the_same(place: Place) -> None:
    backend = place.open()
    await fill(backend, "7")
    await backend.close()
    for users, found in (("int", 7), ("bigint", 7), ("string", "7")):
        printed = render_sql(place.kind, users)  # type: ignore[arg-type]
        for statement in printed.split(";\n"):
            if statement.strip() not in {"BEGIN", "COMMIT", ""}:
                await place.ask(statement)
        assert await place.ask("SELECT user_id FROM locus_threads WHERE name = 'n7'") == [(found,)]
        assert migrate.check(place.url).settings.user_id_type == users  # type: ignore[union-attr]
        assert not await place.set(users)  # type: ignore[arg-type]


async def test_the_printed_sql_refuses_an_id_that_is_no_number(place: Place) -> None:
    for wrong in ("042", "alice", str(MOST + 1)):
        backend = place.open()
        await backend.claim_thread("t", wrong)
        await backend.close()
        printed = render_sql(place.kind, "bigint").split(";\n")
        backend = place.open()

        def run(it: Any, lines: list[str] = printed) -> None:
            for line in lines:
                if line.strip() not in {"BEGIN", "COMMIT", ""}:
                    it.connection.exec_driver_sql(line)

        with pytest.raises(Exception, match=r"number|CHECK|bigint"):
            await backend._write(run)
        await backend.close()
        backend = place.open()
        assert (await backend.thread_facts("t")).user_id == wrong
        await backend.delete("t")
        await backend.close()


async def test_a_client_that_continues_after_an_error_changes_nothing(database_file: Any) -> None:
    place = Place("sqlite", database_file)
    backend = place.open()
    await fill(backend, "7", "alice")
    await backend.close()
    client = sqlite3.connect(database_file, isolation_level=None)
    before = client.execute("SELECT * FROM locus_threads").fetchall()
    for line in render_sql("sqlite", "bigint").split(";\n"):
        with suppress(sqlite3.Error):
            client.execute(line)
    assert client.execute("SELECT * FROM locus_threads").fetchall() == before
    client.close()
    status = migrate.check(place.url)
    assert (status.state, status.settings.user_id_type) == ("ok", "string")  # type: ignore[union-attr]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
def test_the_printed_sql_names_prefix_and_schema(dialect: str) -> None:
    schema = None if dialect == "sqlite" else "agents"
    printed = render_sql(dialect, "bigint", prefix="mine_", schema=schema)
    assert "mine_threads" in printed
    assert ("agents.mine_heads" in printed) is (schema is not None)
    assert "locus_" not in printed


def test_oracle_continues_a_run_that_was_cut_short() -> None:
    dialect: Any = URL.create("oracle").get_dialect()
    ours = make_tables(users="bigint")
    shown = {
        it: "\n".join(make_statements(dialect(), ours, frozenset(it)))
        for it in (("user_id",), ("user_id_before",), ("user_id", "user_id_before"))
    }
    found = [("RENAME COLUMN" in it, "ADD (user_id" in it) for it in shown.values()]
    assert found == [(True, True), (False, True), (False, False)]


async def test_copies_between_databases_of_other_types_are_equal(
    database_file: Any, migrated_database: str, tmp_path: Any
) -> None:
    text, numbers = Place("sqlite", database_file), Place("postgresql", migrated_database)
    last = Place("sqlite", tmp_path / "last.db")
    for place in (numbers, last):
        await asyncio.to_thread(migrate.upgrade, place.url)
    assert [await numbers.set("bigint"), await last.set("int")] == [True, True]
    backends = [text.open(), numbers.open(), MemoryBackend(), last.open()]
    first = backends[0]
    await fill(first, "7", "-8")
    session = SessionCheckpointer(first, user_id_type="string", release_resources=False)
    config = {"thread_id": "said", "user_id": "9", "thread_name": "é"}
    messages = [Message.text_message(f"m {n}", message_id=f"m{n}") for n in range(250)]
    await session.aput_messages(config, messages, metadata={"n": 1.0})
    await session.aput_state(config, AgentState(context=messages[:3]))
    for source, target in pairwise(backends):
        await copy(source, target)
    archives = [io.BytesIO() for _ in backends]
    for backend, archive in zip(backends, archives, strict=True):
        await export_threads(backend, await first.scan(), archive)
        for thread_id in await first.scan():
            assert await backend.read_thread(thread_id) == await first.read_thread(thread_id)
        assert [it async for it in verify(backend) if isinstance(it, Problem)] == []
    for backend in backends:
        await backend.close()
    assert len({it.getvalue() for it in archives}) == 1


def test_other_types_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'uuid'"):
        set_user_id_type("sqlite://", "uuid")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'uuid'"):
        render_sql("sqlite", "uuid")  # type: ignore[arg-type]
