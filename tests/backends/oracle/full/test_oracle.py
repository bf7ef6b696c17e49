"""Behaviour of Oracle: URLs and wallets, failing listeners, errors, the text of migrations."""

from __future__ import annotations

import asyncio
import runpy
import socket
import struct
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import oracledb
import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from oracle_twin import TwinServer, lost, server_error, watched
from sqlalchemy.ext.asyncio import create_async_engine
from storages.oracle import PLACE

from locus_store import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    NotFoundError,
    OracleBackend,
    OracleCheckpointSaver,
    OracleStore,
    SchemaError,
    open_checkpointer,
    open_saver,
    open_store,
    oracle_checkpointer,
)
from locus_store.backends.oracle import addresses, dialect
from locus_store.backends.oracle.definition import define_vector_index
from locus_store.backends.oracle.options import URL_OPTIONS, parse_place
from locus_store.blocking import BlockingCheckpointer
from locus_store.sql import migrate
from locus_store.types.options import read_query

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.anyio

WHO = {"user": "locus", "password": "s3cret"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- places


def test_host_port_and_service_are_one_way_to_say_it() -> None:
    place = addresses.make_address(None, **WHO, host="db", service_name="x")
    assert place.shown == "locus@db:1521/x"
    assert {**place.arguments} == {**WHO, "dsn": "db:1521/x"}
    place = addresses.make_address("db", **WHO, service_name="x")
    assert place.arguments["dsn"] == "db/x"
    place = addresses.make_address(None, **WHO, host="::1", port=1, service_name="x")
    assert place.arguments["dsn"] == "[::1]:1/x"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs dsn="),
        ({"host": "db"}, "service_name"),
        ({"dsn": "x", "host": "db"}, "not both"),
        ({"dsn": "scott/tiger@db"}, "options of their own"),
        ({"dsn": " "}, "alias of tnsnames.ora"),
        ({"dsn": "db:1521"}, "names no service"),
        ({"dsn": "oracle://db/x"}, "takes a URL"),
        ({"dsn": 5}, "dsn must be a str"),
        ({"dsn": "x", "password": b"x"}, "password must be a str"),
        ({"dsn": "x", "user": ""}, "user= and password="),
        ({"dsn": "x", "password": None}, "user= and password="),
        ({"host": "db", "service_name": "x", "port": 0}, "port=0"),
        ({"dsn": "x", "wallet_location": "/absent"}, "not a directory"),
        ({"dsn": "x", "wallet_password": "w"}, "give its wallet_location="),
        ({"dsn": "x", "config_dir": "/absent"}, "not a directory"),
        ({"dsn": "x", "config_dir": "~nobody-here/x"}, "no such home"),
        ({"dsn": "x", "min_pool_size": 0}, "min_pool_size"),
        ({"dsn": "x", "min_pool_size": 3, "max_pool_size": 2}, "max_pool_size"),
        ({"dsn": "x", "connect_timeout_seconds": 0}, "connect_timeout_seconds"),
        ({"dsn": "x", "table_name": "a", "prefix": "b_"}, "not both"),
        ({"engine": object()}, "async SQLAlchemy engine"),
        ({"pool": object()}, "AsyncConnectionPool"),
        ({"pool": object.__new__(oracledb.ConnectionPool)}, "AsyncConnectionPool"),
        ({"pool": SimpleNamespace(acquire=print, release=print, max=1)}, "max=2"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    who = {} if options.keys() & {"engine", "pool"} else WHO
    with pytest.raises(InvalidArgumentError, match=told):
        OracleBackend(**{**who, **options})


def wallet(directory: Path, text: str = "-----BEGIN CERTIFICATE-----\n") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "ewallet.pem").write_text(text)
    return directory


def encrypted_key(password: bytes) -> str:
    """A certificate and its key, as a wallet of an Autonomous Database has them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "locus")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    of_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    return (of_key + made.public_bytes(serialization.Encoding.PEM)).decode()


def test_the_certificates_of_the_system_are_no_directory() -> None:
    place = addresses.make_address("db_low", **WHO, wallet_location="SYSTEM")
    assert place.arguments["wallet_location"] == "SYSTEM"
    assert "config_dir" not in place.arguments


def test_a_wallet_is_looked_at_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = wallet(tmp_path / "wallet")
    for password in (None, ""):
        place = addresses.make_address(
            "db_low", **WHO, wallet_location="~/wallet", wallet_password=password
        )
        assert place.arguments["wallet_location"] == place.arguments["config_dir"] == str(made)
        assert "wallet_password" not in place.arguments
    wallet(tmp_path / "wallet", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(InvalidArgumentError, match="is encrypted"):
        addresses.make_address("db_low", **WHO, wallet_location=str(made))
    for password in ("w", "another"):
        wallet(made, encrypted_key(b"w"))
        options: dict[str, Any] = {"wallet_location": str(made), "wallet_password": password}
        if password == "w":  # noqa: S105
            place = addresses.make_address("db_low", **WHO, **options)
            assert place.arguments["wallet_password"] == "w"  # noqa: S105
        else:
            with pytest.raises(InvalidArgumentError, match="another wallet_password made it"):
                addresses.make_address("db_low", **WHO, **options)
    (made / "ewallet.pem").unlink()
    with pytest.raises(InvalidArgumentError, match="has no ewallet"):
        addresses.make_address("db_low", **WHO, wallet_location=str(made))


@pytest.mark.parametrize(
    ("url", "dsn"),
    [
        ("oracle://u:p%40s@db:1522/svc", "db:1522/svc"),
        ("oracle://u:p%40s@mydb_low", "mydb_low"),
        ("oracle+oracledb_async://u:p%40s@db?service_name=svc", "db/svc"),
        ("oracle://u:p%40s@db:1522?service_name=svc", "db:1522/svc"),
        ("oracle://u:p@s@db:1522/svc", "db:1522/svc"),
        ("oracle://u:p%40s@?host=db&port=1522&service_name=svc", "db:1522/svc"),
    ],
)
def test_a_url_names_a_place(url: str, dsn: str) -> None:
    named, query = parse_place(url)
    given = {"dsn": None, **named, **read_query((URL_OPTIONS,), query)}
    found = addresses.make_address(**given).arguments
    assert found == {"user": "u", "password": "p@s", "dsn": dsn}


@pytest.mark.parametrize("url", ["oracle://u:s3cret?x@db", "oracle://u:s3cret@db:1522"])
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        open_checkpointer(url)
    assert "s3cret" not in str(raised.value)


async def test_a_place_that_the_driver_cannot_read_is_told_without_the_password() -> None:
    for url in ("oracle://u:s3cret@db:none/x", "oracle://u:s3cret@[x", "oracle://u:s3cret@a b"):
        async with open_checkpointer(url) as checkpointer:
            with pytest.raises(ConnectionFailedError, match="DPY-") as raised:
                await checkpointer.load("t")
        assert "s3cret" not in str(raised.value)


def test_every_way_to_open_takes_the_options_in_the_query(tmp_path: Path) -> None:
    made = wallet(tmp_path / "wallet")
    url = f"oracle://u:p@db_low?wallet_location={made}&wallet_password=&max_pool_size=7&schema=s"
    checkpointer = open_checkpointer(url + "&keep_last=3")
    assert checkpointer.keep_last == 3
    assert isinstance(checkpointer.backend, OracleBackend)
    assert repr(checkpointer.backend) == "OracleBackend('u@db_low')"
    assert checkpointer.backend.shared.database.tables.schema == "s"
    assert isinstance(open_saver(url).backend, OracleBackend)
    store = open_store(url, dimension=3)
    assert isinstance(store, OracleStore)
    assert repr(store) == "OracleStore('u@db_low')"
    saver = OracleCheckpointSaver("db_low", "locus", "s3cret", table_name="locus")
    assert isinstance(saver.backend, OracleBackend)


def test_the_tables_may_be_those_of_another_schema() -> None:
    backend = OracleBackend("x", **WHO, schema_name="agents", table_name="app_checkpoints")
    tables = backend.shared.database.tables
    assert (tables.schema, tables.prefix) == ("agents", "app_")


# --- listeners (the real driver)


@contextmanager
def listener(kind: str) -> Iterator[int]:
    """A port where something answers that is no database."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=_serve, args=(server, kind))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)  # which ends an accept, as closing does not
            thread.join()


def _serve(server: socket.socket, kind: str) -> None:
    with ExitStack() as kept:
        while True:
            try:
                client = kept.enter_context(server.accept()[0])
            except OSError:
                return
            if kind != "silent":
                with suppress(OSError):  # it has gone
                    _answer(client, kind)


def _answer(client: socket.socket, kind: str) -> None:
    client.recv(4096)
    if kind == "unknown service":
        told = b"(DESCRIPTION=(TMP=)(VSNNUM=0)(ERR=12514)(ERROR_STACK=(ERROR=(CODE=12514))))"
        head = struct.pack(">HHBBH", 12 + len(told), 0, 4, 0, 0)
        client.sendall(head + b"\x22\x00" + struct.pack(">H", len(told)) + told)
    elif kind == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


async def refused(**options: Any) -> str:
    place = {"host": "127.0.0.1", "service_name": "x", **options}
    async with oracle_checkpointer(**WHO, **place, state_type=dict) as checkpointer:
        with pytest.raises(ConnectionFailedError) as raised:
            await checkpointer.load("t")
    assert "s3cret" not in f"{raised.value!r} {raised.value.__cause__!r}"
    return str(raised.value)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("unknown service", "(DPY-6001): the listener does not know this service"),
        ("reset", "DPY-4011"),
    ],
)
async def test_a_listener_that_refuses_is_told(kind: str, told: str) -> None:
    with listener(kind) as port:
        assert told in await refused(port=port)


async def test_a_silent_listener_does_not_hang() -> None:
    with listener("silent") as port:
        async with asyncio.timeout(20):
            assert "no answer in time" in await refused(port=port, connect_timeout_seconds=0.3)


async def test_nobody_listening_and_an_unknown_host_are_told() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    assert "nobody listens there" in await refused(port=port)
    assert "no host of this name" in await refused(host="absent.invalid")


async def test_an_alias_that_is_not_there_is_told(tmp_path: Path) -> None:
    alias: dict[str, Any] = {"host": None, "service_name": None, "dsn": "db_low"}
    assert "DPY-4026" in await refused(**alias, config_dir=str(tmp_path))
    (tmp_path / "tnsnames.ora").write_text("other=(DESCRIPTION=(ADDRESS=(PROTOCOL=tcp)))")
    assert "no such alias" in await refused(**alias, config_dir=str(tmp_path))


# --- errors, over the double


async def test_a_race_is_run_again(twin: TwinServer) -> None:
    async with oracle_checkpointer(**PLACE, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        for number in (1, 54, 60, 8177):
            twin.failures += [server_error(number, "lost"), server_error(number, "lost")]
            await checkpointer.save({"n": number}, "t")
            assert await checkpointer.load("t") == {"n": number}


async def test_a_save_whose_connection_was_lost_is_asked_about(twin: TwinServer) -> None:
    async with oracle_checkpointer(**PLACE, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        twin.failures.append(lost())
        await checkpointer.save({"n": 2}, "t")
        assert await checkpointer.load("t") == {"n": 2}
        assert len(await checkpointer.list_checkpoints("t")) == 2


async def test_a_save_on_a_demoted_primary_is_done_again_on_new_connections(
    twin: TwinServer,
) -> None:
    async with oracle_checkpointer(**PLACE, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        made: list[Any] = []
        sa.event.listen(sa.pool.Pool, "connect", lambda *_: made.append(_))
        twin.failures.append(server_error(16000, "open for read-only access"))
        await checkpointer.save({"n": 2}, "t")
        assert made
        assert await checkpointer.load("t") == {"n": 2}
        twin.watch = refuse_writes
        with pytest.raises(BackendError, match="ORA-16000: the database is read-only"):
            await checkpointer.save({"n": 3}, "t")


def refuse_writes(statement: str) -> None:
    """The primary was demoted."""
    if "locus_" in statement and not statement.startswith("SELECT"):
        raise server_error(16000, "open for read-only access")


def lose_loads(statement: str) -> None:
    """The connection goes under each query."""
    if statement.startswith("SELECT"):
        raise lost()


async def test_a_load_whose_connection_was_lost_is_done_again(twin: TwinServer) -> None:
    async with oracle_checkpointer(**PLACE, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        twin.failures.append(lost())
        assert await checkpointer.load("t") == {"n": 1}
        twin.watch = lose_loads
        with pytest.raises(ConnectionFailedError, match=r"DPY-4011.*saving again is safe"):
            await checkpointer.load("t")
        twin.watch = None
        assert await checkpointer.load("t") == {"n": 1}


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (942, SchemaError, "schema_name=, .*db upgrade"),
        (1950, BackendError, "QUOTA"),
        (1031, BackendError, "docs/oracle.md"),
        (1653, BackendError, "tablespace is full"),
        (1536, BackendError, "QUOTA"),
        (4063, BackendError, "ORA-04063"),
    ],
)
async def test_an_error_of_the_server_is_told_by_its_code(
    number: int, kind: type[Exception], told: str, twin: TwinServer
) -> None:
    async with oracle_checkpointer(**PLACE, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        twin.failures.append(server_error(number, "the server's words"))
        with pytest.raises(kind, match=told):
            await checkpointer.load("t")
        assert await checkpointer.load("t") == {"n": 1}


async def test_an_index_finds_what_the_scan_finds(twin: TwinServer) -> None:
    async with OracleBackend(**PLACE) as backend:
        for n in range(8):
            await backend.save(f"t{n}", {"text": f"word{n % 3} Straße {n}"})
        wanted = ["word1", "strasse", "STRASSE 4", "absent", "word2 5"]
        plain = [sorted(await backend.search(it)) for it in wanted]
        assert await backend.create_search_index() is True
        assert await backend.create_search_index() is False
        assert [sorted(await backend.search(it)) for it in wanted] == plain
        await backend.save("t1", {"text": "other"})
        await backend.delete("t4")
        assert await backend.search("word1") == ["t7"] or "t4" not in await backend.search("word1")
    async with OracleBackend(**PLACE) as other:
        assert sorted(await other.search("strasse")) == sorted(f"t{n}" for n in range(8) if n != 4)


async def test_an_index_that_another_process_made_is_kept_up(twin: TwinServer) -> None:
    async with OracleBackend(**PLACE) as mine, OracleBackend(**PLACE) as theirs:
        await mine.save("old", {"text": "giraffe"})
        await theirs.create_search_index()
        await mine.save("old", {"text": "zebra"})
        await mine.save("new", {"text": "zebra"})
        assert sorted(await theirs.search("zebra")) == ["new", "old"]


@pytest.mark.parametrize("status", [("VALID", "FAILED"), ("INPROGRS", "VALID")])
async def test_an_index_that_could_not_be_made_is_made_anew(
    status: tuple[str, str], twin: TwinServer
) -> None:
    def refuse(statement: str) -> None:
        if "INDEXTYPE" in statement:
            twin.text_index = status
            raise server_error(29855, "error in the execution of ODCIINDEXCREATE routine")

    async with OracleBackend(**PLACE) as backend:
        await backend.save("t", {"text": "giraffe"})
        twin.watch = refuse
        with pytest.raises(BackendError, match="ORA-29855"):
            await backend.create_search_index()
        twin.watch = None
        await backend.save("u", {"text": "giraffe"})
        assert await backend.create_search_index() is True
        assert twin.text_index == ("VALID", "VALID")
        assert "DROP INDEX locus_search_tokens FORCE" in twin.statements()
        assert sorted(await backend.search("giraffe")) == ["t", "u"]


async def test_a_page_of_threads_comes_with_its_statement(twin: TwinServer) -> None:
    async with OracleBackend(**PLACE) as backend:
        await backend.save("t", {"n": 1})
        twin.calls.clear()
        await backend.list_threads()
        assert [(it.kind, it.rows) for it in twin.calls] == [("execute", 1000)]


async def test_a_table_of_embeddings_that_was_cut_short_is_made_anew(twin: TwinServer) -> None:
    def lose_setting(statement: str) -> None:
        if statement.startswith("INSERT INTO locus_settings"):
            raise lost()

    twin.watch = lose_setting
    with pytest.raises(ConnectionFailedError):
        async with OracleStore(**PLACE, dimension=2):
            pass
    twin.watch = None
    async with OracleStore(**PLACE, dimension=2) as store:
        await store.put_with_embedding(("a",), "k", 1, [1.0, 0.0])
        assert [it.item.key for it in await store.search_by_embedding(("a",), [1.0, 0.0], 3)] == [
            "k"
        ]


async def test_loops_of_several_threads_do_not_wait_for_each_other(twin: TwinServer) -> None:
    """``functools.cached_property`` of Python 3.11 holds a lock while it asks."""
    slow, is_saved = threading.current_thread(), threading.Event()

    def hold(statement: str) -> None:
        if "locus_settings" in statement and threading.current_thread() is slow:
            assert is_saved.wait(20)

    async def save() -> None:
        async with OracleBackend(**PLACE) as backend:
            await backend.write_state("other", {"n": 1})  # asks for the index
        is_saved.set()

    other = threading.Thread(target=lambda: asyncio.run(save()))
    async with OracleBackend(**PLACE) as backend:
        await backend.write_state("slow", {"n": 1})
        twin.watch = hold
        other.start()
        await backend.search("giraffe")  # asks, too; the twin's transactions that write take turns
    other.join()
    assert is_saved.is_set()


async def test_more_lines_are_found_than_a_statement_takes(
    twin: TwinServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with OracleBackend(**PLACE) as backend:
        for n in range(7):
            await backend.save(f"t{n}", {"text": "giraffe"})
        await backend.create_search_index()
        monkeypatch.setattr("locus_store.sql.threads.pending.BATCH", 2)
        assert sorted(await backend.search("giraffe")) == [f"t{n}" for n in range(7)]


async def test_a_connection_is_given_back_without_a_transaction(twin: TwinServer) -> None:
    async with OracleBackend(**PLACE, max_pool_size=1) as backend:
        await backend.save("t", {"n": 1})
        twin.failures.append(server_error(1653, "full"))
        with pytest.raises(BackendError):
            await backend.write_state("t", {"n": 2}, keep_last=1)
        assert not twin.lock.locked()
        twin.calls.clear()
        await backend.load("t")
        assert [(it.kind, it.is_autocommit) for it in twin.calls] == [("execute", True)]


async def test_a_pool_of_the_callers_is_borrowed_from(twin: TwinServer) -> None:
    class Pool:
        """The part of ``oracledb.AsyncConnectionPool`` that is used."""

        acquire = staticmethod(twin.connect)
        release = staticmethod(twin.connect)

    async with oracle_checkpointer(pool=Pool(), state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        assert await checkpointer.load("t") == {"n": 1}


async def test_a_save_is_committed_and_undone_with_the_callers_rows(twin: TwinServer) -> None:
    place = addresses.make_address(**PLACE)
    engine = create_async_engine(
        "oracle+oracledb_async://", connect_args={"async_creator_fn": place.connect}
    )
    watched(engine.sync_engine)
    async with (
        oracle_checkpointer(**PLACE, state_type=dict) as checkpointer,
        OracleStore(backend=checkpointer.backend) as store,
    ):
        await checkpointer.save({"n": 0}, "t", "v0")
        state = await checkpointer.load("t")
        state["n"] = 1
        async with engine.connect() as connection:
            await checkpointer.save(state, "t", "v1", connection=connection)
            await store.put(("a",), "k", 1, connection=connection)
            await connection.rollback()
            assert await checkpointer.list_checkpoints("t") == ["v0"]
            assert await store.get(("a",), "k") is None
            await checkpointer.save(state, "t", "v1", {"k": "x"}, connection=connection)
            await store.put(("a",), "k", 1, connection=connection)
            with pytest.raises(NotFoundError):
                await checkpointer.save(
                    state, "t", parent_checkpoint_id="none", connection=connection
                )
            await connection.commit()
        assert await checkpointer.load("t") == {"n": 1}
        assert await checkpointer.get_metadata("t") == {"k": "x"}
        assert await store.get(("a",), "k") == 1
        own = dialect.make_engine(place)
        async with own.connect() as connection:
            with pytest.raises(InvalidArgumentError, match="AUTOCOMMIT"):
                await checkpointer.save(state, "t", "v2", connection=connection)
        await own.dispose()
    await engine.dispose()


async def test_an_engine_of_the_callers_is_left_open_and_as_it_was(twin: TwinServer) -> None:
    engine = dialect.make_engine(addresses.make_address(**PLACE))
    async with oracle_checkpointer(engine=engine, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        assert raw.dbapi_connection.autocommit is True
    async with oracle_checkpointer(engine=engine, state_type=dict) as checkpointer:
        assert await checkpointer.load("t") == {"n": 1}
    await engine.dispose()


def test_it_works_without_await(twin: TwinServer) -> None:
    with BlockingCheckpointer(oracle_checkpointer(**PLACE, state_type=dict)) as checkpointer:
        checkpointer.save({"n": 1}, "t")
        assert checkpointer.load("t") == {"n": 1}


async def test_the_example_walks_through(
    twin: TwinServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "oracle_notebook.py"))
    await example["main"]()
    assert "set ORACLE_DSN, ORACLE_USER, ORACLE_PASSWORD" in capsys.readouterr().out
    for name, value in (("DSN", "twin:1521/x"), ("USER", "locus"), ("PASSWORD", "secret")):
        monkeypatch.setenv(f"ORACLE_{name}", value)
    monkeypatch.setitem(
        example["main"].__globals__, "place", lambda: PLACE
    )  # of the double's tables
    await example["main"]()
    told = capsys.readouterr().out
    assert "2 messages" in told
    assert "'Porto' is in ['trip']" in told


async def test_a_server_that_is_too_old_is_told(
    twin: TwinServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oracle_twin.TwinConnection.version", "19.21.0.0.0")
    async with OracleBackend(**PLACE) as backend:
        with pytest.raises(ConnectionFailedError, match=r"release 19.*23ai or later"):
            await backend.load("t")


async def test_with_an_engine_of_the_callers_the_cause_is_told_too() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    engine = create_async_engine(
        f"oracle+oracledb_async://u:s3cret@127.0.0.1:{port}/?service_name=x"
    )
    async with OracleBackend(engine=engine) as backend:
        with pytest.raises(ConnectionFailedError, match="nobody listens there") as raised:
            await backend.load("t")
    assert "s3cret" not in str(raised.value)
    await engine.dispose()


# --- definitions


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
def test_a_vector_index_is_made_by_one_statement(metric: Any, method: Any) -> None:
    from locus_store.sql.schema.tables import make_tables

    made = define_vector_index(make_tables(), metric, method, dialect._make_engine(None).dialect)
    words = {"cosine": "COSINE", "l2": "EUCLIDEAN", "ip": "DOT"}
    kinds = {"hnsw": "INMEMORY NEIGHBOR GRAPH", "ivfflat": "NEIGHBOR PARTITIONS"}
    assert made == (
        f"CREATE VECTOR INDEX locus_embeddings_{metric}_{method} ON locus_embeddings (embedding) "
        f"ORGANIZATION {kinds[method]} DISTANCE {words[metric]} WITH TARGET ACCURACY 95"
    )


def test_the_longest_keys_stay_within_an_index_of_oracles() -> None:
    from locus_store.sql.schema.tables import make_tables

    for table in make_tables().metadata.sorted_tables:
        for keys in (*table.indexes, *table.constraints):
            if "postgresql" in str(getattr(keys, "info", "")):
                continue
            lengths = [
                4
                * (
                    getattr(
                        it.type.dialect_impl(dialect._make_engine(None).dialect), "length", None
                    )
                    or 6
                )
                for it in keys.columns
            ]
            assert sum(lengths) + 2 * len(lengths) <= 6_398, keys


def test_the_offline_text_is_the_schema_users_own() -> None:
    text = migrate.render_upgrade("oracle").upper()
    assert "CREATE ANY" not in text
    assert " JSON" in text
    assert "TIMESTAMP WITH TIME ZONE" in text
