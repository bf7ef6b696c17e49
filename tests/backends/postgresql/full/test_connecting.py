"""Connecting to real PostgreSQL servers by DSN, and what is said when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import asyncpg
import pytest
import servers

from locus_store.backends.postgresql.connecting import connect, make_connection_error
from locus_store.backends.postgresql.dsn import parse
from locus_store.errors import ConnectionFailedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


pytestmark = pytest.mark.anyio

PASSWORD = "a:b\\c @/?#%é"  # noqa: S105  (made up)
OTHER_NAME = "127.0.0.2"
"""An address of this machine that stands in no certificate."""

HBA = """
local replication postgres trust
local all all trust
hostssl all postgres 127.0.0.0/8 cert
hostssl all encrypted 127.0.0.0/8 trust
host all encrypted 127.0.0.0/8 reject
hostnossl all plain 127.0.0.0/8 trust
host all plain 127.0.0.0/8 reject
host all anyone 127.0.0.0/8 trust
host all all 127.0.0.0/8 scram-sha-256
"""
ROLES = """
CREATE ROLE anyone LOGIN; CREATE ROLE encrypted LOGIN; CREATE ROLE plain LOGIN;
CREATE ROLE keeper LOGIN PASSWORD 'a:b\\c @/?#%é'; CREATE ROLE "u@ /:%é" LOGIN PASSWORD 'x';
CREATE ROLE crowded LOGIN CONNECTION LIMIT 0 PASSWORD 'x';
"""


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of the developer's: neither files nor variables."""
    made = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [it for it in os.environ if it.startswith("PG")]:
            patch.delenv(name)
        patch.setenv("HOME", str(made))
        yield made


def started(*args: Any, **options: Any) -> Iterator[servers.PostgreSQL]:
    try:
        server = servers.PostgreSQL(*args, **options)
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def guarded() -> Iterator[servers.PostgreSQL]:
    """With TLS, at most 1.2, and a rule for each role."""
    listen = f"{servers.LOOPBACK},{OTHER_NAME}"
    settings = {"listen_addresses": listen, "ssl_max_protocol_version": "TLSv1.2"}
    for server in started("debian", tls=True, hba=HBA, settings=settings):
        server.execute(ROLES)
        server.execute('CREATE DATABASE "d@/é"')
        server.execute('REVOKE CONNECT ON DATABASE "d@/é" FROM public')
        yield server


@pytest.fixture(scope="module")
def primary() -> Iterator[servers.PostgreSQL]:
    yield from started(hba=f"local replication postgres trust\n{servers.TRUST}")


class Standby(servers.PostgreSQL):
    """Follows another server."""

    def __init__(self, followed: servers.PostgreSQL) -> None:
        self._followed = followed
        super().__init__()

    def _make(self, hba: str) -> None:
        of = ("-h", self._followed.socket_directory, "-p", str(self._followed.port))
        options = ("-U", "postgres", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.run("pg_basebackup", "-D", str(self.data), *of, *options)


@pytest.fixture(scope="module")
def standby(primary: servers.PostgreSQL) -> Iterator[servers.PostgreSQL]:
    server = Standby(primary)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def read_only() -> Iterator[servers.PostgreSQL]:
    """A primary on which transactions are read-only unless they ask for more."""
    yield from started(settings={"default_transaction_read_only": "on"})


@asynccontextmanager
async def connected(text: str, *, password: Any = None, **options: Any) -> AsyncIterator[Any]:
    connection = await connect(parse(text, password=password), **{"timeout": 60} | options)
    try:
        yield connection
    finally:
        await connection.close()


async def ask(text: str, query: str, **options: Any) -> Any:
    async with connected(text, **options) as connection:
        return await connection.fetchval(query)


async def port(text: str, **options: Any) -> int:
    return await ask(text, "SELECT current_setting('port')::int", **options)


async def is_encrypted(text: str) -> bool:
    return await ask(text, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


async def failure(text: str, **options: Any) -> str:
    """The message of a connection that fails."""
    before = open_sockets()
    with pytest.raises(ConnectionFailedError) as caught:
        await ask(text, "SELECT 1", **options)
    assert parse(text).shown in str(caught.value)
    # asyncpg begins to close a failed TLS connection, and asyncio ends that with the server's
    # answer. A loop that ends first leaves the socket to the garbage collector, which reports it.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            while open_sockets() > before:  # noqa: ASYNC110  (a selector tells nobody)
                await asyncio.sleep(0.001)
    return str(caught.value)


def open_sockets() -> int:
    """Sockets that the running loop listens to."""
    return len(asyncio.get_running_loop()._selector.get_map())


def url(place: str, **query: object) -> str:
    return f"postgresql://{place}/postgres?{urlencode(query)}"


def dsn(server: Any, *, user: str = "anyone", host: str = "localhost", **query: object) -> str:
    return url(f"{user}@{host}:{server.port}", **query)


# --- TLS


@pytest.mark.parametrize(
    ("mode", "encrypted"),
    [("disable", False), ("allow", False), ("prefer", True), ("require", True)],
)
async def test_sslmode_decides_whether_a_server_with_tls_is_spoken_to_in_it(
    mode: str, encrypted: bool, guarded: servers.PostgreSQL
) -> None:
    assert await is_encrypted(dsn(guarded, sslmode=mode)) is encrypted
    assert await is_encrypted(dsn(guarded))


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_server_is_verified_against_the_authority_that_is_named(
    mode: str, guarded: servers.PostgreSQL
) -> None:
    tls = guarded.tls
    assert await is_encrypted(dsn(guarded, sslmode=mode, sslrootcert=tls.ca))
    said = await failure(dsn(guarded, sslmode=mode, sslrootcert=tls.other_ca))
    assert "not signed by an authority that is trusted" in said


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
async def test_a_server_without_tls_is_spoken_to_in_clear_where_that_is_allowed(
    mode: str, primary: servers.PostgreSQL
) -> None:
    assert await is_encrypted(dsn(primary, user="postgres", sslmode=mode)) is False


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_server_without_tls_is_refused_where_it_is_required(
    mode: str, primary: servers.PostgreSQL, guarded: servers.PostgreSQL
) -> None:
    asked = dsn(primary, user="postgres", sslmode=mode, sslrootcert=guarded.tls.ca)
    assert "refuses TLS" in await failure(asked)


async def test_a_server_that_wants_tls_or_none_says_no_to_the_other(
    guarded: servers.PostgreSQL,
) -> None:
    assert "pg_hba.conf" in await failure(dsn(guarded, user="encrypted", sslmode="disable"))
    assert await is_encrypted(dsn(guarded, user="encrypted", sslmode="allow"))
    assert "pg_hba.conf" in await failure(dsn(guarded, user="plain", sslmode="require"))
    assert await is_encrypted(dsn(guarded, user="plain", sslmode="prefer")) is False


async def test_a_role_that_is_not_there_is_among_what_may_be_wrong(
    primary: servers.PostgreSQL,
) -> None:
    assert "whether the role exists" in await failure(dsn(primary, user="nobody_here"))


async def test_another_name_than_the_certificates_is_refused_by_verify_full_only(
    guarded: servers.PostgreSQL,
) -> None:
    asked = {"host": OTHER_NAME, "sslrootcert": guarded.tls.ca}
    assert await is_encrypted(dsn(guarded, sslmode="verify-ca", **asked))
    assert "for another name" in await failure(dsn(guarded, sslmode="verify-full", **asked))


async def test_channel_binding_required_verifies_the_server_and_its_name(
    guarded: servers.PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"sslmode": "require", "channel_binding": "require"}
    assert await is_encrypted(dsn(guarded, **asked, sslrootcert=guarded.tls.ca))
    other = dsn(guarded, **asked, sslrootcert=guarded.tls.ca, host=OTHER_NAME)
    assert "for another name" in await failure(other)
    assert "sslrootcert=" in await failure(dsn(guarded, **asked))
    # The one place where the system's authorities can be changed without changing the system.
    monkeypatch.setenv("SSL_CERT_FILE", str(guarded.tls.ca))
    assert await is_encrypted(dsn(guarded, **asked))
    assert "for another name" in await failure(dsn(guarded, **asked, host=OTHER_NAME))


@pytest.mark.parametrize("root", ["file", "system"])
async def test_a_client_certificate_logs_in(
    root: str, guarded: servers.PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = guarded.tls
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca))
    asked = {
        "user": "postgres",
        "sslmode": "verify-full",
        "sslrootcert": tls.ca if root == "file" else "system",
    }
    files = {"sslcert": tls.client_certificate, "sslkey": tls.client_key}
    assert await is_encrypted(dsn(guarded, **asked, **files))
    assert "sslcert=" in await failure(dsn(guarded, **asked))


async def test_a_key_with_a_password_of_its_own_is_opened_with_it(
    guarded: servers.PostgreSQL, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(guarded.tls.client_key.read_bytes(), None)
    (tmp_path / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    asked = {
        "user": "postgres",
        "sslmode": "require",
        "sslcert": guarded.tls.client_certificate,
        "sslkey": tmp_path / "locked.key",
    }
    assert await is_encrypted(dsn(guarded, **asked, sslpassword=PASSWORD))
    said = await failure(dsn(guarded, **asked, sslpassword="wrong-one"))
    assert "sslpassword=" in said
    assert "wrong-one" not in said


async def test_certificates_beside_the_home_directory_are_found(
    guarded: servers.PostgreSQL, home: Path
) -> None:
    folder = home / ".postgresql"
    folder.mkdir()
    for name, file in {
        "root.crt": guarded.tls.ca,
        "postgresql.crt": guarded.tls.client_certificate,
        "postgresql.key": guarded.tls.client_key,
    }.items():
        shutil.copy(file, folder / name)
    try:
        assert await is_encrypted(dsn(guarded, user="postgres", sslmode="verify-full"))
    finally:
        shutil.rmtree(folder)


async def test_a_list_of_revoked_certificates_is_asked(
    guarded: servers.PostgreSQL, tmp_path: Path
) -> None:
    (tmp_path / "crl.pem").write_bytes(revocations())
    asked = {"sslmode": "verify-full", "sslrootcert": guarded.tls.ca}
    # It is another authority's, so that it says nothing of this one, which is not enough.
    said = await failure(dsn(guarded, **asked, sslcrl=tmp_path / "crl.pem"))
    assert "certificate" in said


def revocations() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.now(UTC)
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")]))
        .last_update(now - timedelta(days=1))
        .next_update(now + timedelta(days=1))
    )
    signed = made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


async def test_the_oldest_version_of_tls_is_the_users_to_choose(
    guarded: servers.PostgreSQL,
) -> None:
    asked = {"sslmode": "require", "sslrootcert": guarded.tls.ca}
    assert await is_encrypted(dsn(guarded, **asked, ssl_min_protocol_version="TLSv1.2"))
    said = await failure(dsn(guarded, **asked, ssl_min_protocol_version="TLSv1.3"))
    assert "ssl_min_protocol_version=" in said


@asynccontextmanager
async def behind_tls(server: servers.PostgreSQL, tls: servers.Tls) -> AsyncIterator[int]:
    """A port that speaks TLS from the first byte, as PostgreSQL 17's own does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["postgresql"])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "postgresql"
        there, back = await asyncio.open_connection(servers.LOOPBACK, server.port)
        await asyncio.gather(copy(reader, back), copy(there, writer))
        await ended(writer, back)

    async with listening(serve, ssl=context) as number:
        yield number


@asynccontextmanager
async def listening(serve: Any, **options: Any) -> AsyncIterator[int]:
    """A port; every conversation is over when it is left."""
    tasks: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, servers.LOOPBACK, 0, **options) as listener:
        yield listener.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


async def ended(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.skipif(
    tuple(map(int, asyncpg.__version__.split(".")[:2])) < (0, 32),
    reason="older asyncpg does not say that it speaks PostgreSQL, as direct TLS demands",
)
async def test_tls_from_the_first_byte(
    primary: servers.PostgreSQL, guarded: servers.PostgreSQL
) -> None:
    async with behind_tls(primary, guarded.tls) as tls_port:
        asked = f"postgresql://postgres@localhost:{tls_port}/postgres?sslmode=verify-full"
        asked += f"&sslrootcert={quote(str(guarded.tls.ca))}"
        assert await port(f"{asked}&sslnegotiation=direct") == primary.port


# --- several hosts


def several(*places: Any, **query: object) -> str:
    hosts = ",".join(f"{servers.LOOPBACK}:{getattr(it, 'port', it)}" for it in places)
    return url(f"postgres@{hosts}", **query)


async def test_a_dead_host_is_passed_over(primary: servers.PostgreSQL) -> None:
    assert await port(several(servers.free_port(), primary)) == primary.port
    unknown = f"postgresql://postgres@nowhere.invalid,{servers.LOOPBACK}/postgres"
    assert await port(f"{unknown}?port={primary.port}") == primary.port
    assert await port(several(primary, servers.free_port())) == primary.port


async def test_a_host_that_swallows_packets_is_passed_over_in_time(
    primary: servers.PostgreSQL,
) -> None:
    hole = servers.Proxy(primary.port)
    hole.hold()
    try:
        assert await port(several(hole, primary, connect_timeout=1), timeout=None) == primary.port
        assert await port(several(hole, primary), timeout=1) == primary.port
    finally:
        hole.close()


@pytest.fixture
def stopping() -> Iterator[servers.PostgreSQL]:
    yield from started()


async def test_a_host_that_is_stopping_is_passed_over(
    stopping: servers.PostgreSQL, primary: servers.PostgreSQL
) -> None:
    async with connected(several(stopping)):
        stopping.process.send_signal(signal.SIGTERM)  # waits for that session
        servers.wait_until(lambda: "smart shutdown" in stopping.log, "the server to stop")
        assert "starting, stopping" in await failure(several(stopping))
        assert await port(several(stopping, primary)) == primary.port


async def test_a_wrong_password_ends_the_search(
    guarded: servers.PostgreSQL, primary: servers.PostgreSQL
) -> None:
    asked = dsn(guarded, user="keeper", host=servers.LOOPBACK)
    hosts = f"{servers.LOOPBACK}:{guarded.port}"
    asked = asked.replace(hosts, f"{hosts},{servers.LOOPBACK}:{primary.port}")
    assert "password is wrong" in await failure(asked, password=lambda: "wrong")


@pytest.mark.parametrize(
    ("wanted", "first", "second"),
    [
        ("any", "primary", "standby"),
        ("primary", "primary", "primary"),
        ("read-write", "primary", "primary"),
        ("standby", "standby", "standby"),
        ("read-only", "standby", "standby"),
        ("prefer-standby", "standby", "standby"),
    ],
)
async def test_target_session_attrs_finds_its_server_in_either_order(
    wanted: str,
    first: str,
    second: str,
    primary: servers.PostgreSQL,
    standby: servers.PostgreSQL,
) -> None:
    named = {"primary": primary.port, "standby": standby.port}
    query = {"target_session_attrs": wanted}
    assert await port(several(primary, standby, **query)) == named[first]
    assert await port(several(standby, primary, **query)) == named[second]
    assert await port(several(servers.free_port(), primary, standby, **query)) == named[first]


async def test_a_read_only_primary_takes_no_writes_but_is_a_primary(
    primary: servers.PostgreSQL, read_only: servers.PostgreSQL
) -> None:
    both = (read_only, primary)
    assert await port(several(*both, target_session_attrs="read-write")) == primary.port
    assert await port(several(*both, target_session_attrs="read-only")) == read_only.port
    assert await port(several(*both, target_session_attrs="primary")) == read_only.port
    assert await port(several(*both, target_session_attrs="prefer-standby")) == read_only.port


async def test_no_host_of_the_wanted_kind_is_told(primary: servers.PostgreSQL) -> None:
    for wanted in ("standby", "read-only"):
        said = await failure(several(primary, target_session_attrs=wanted))
        assert "target_session_attrs" in said
    assert "refused" in await failure(several(servers.free_port(), servers.free_port()))


async def test_hosts_are_tried_in_a_new_order_where_that_is_asked(
    primary: servers.PostgreSQL, standby: servers.PostgreSQL
) -> None:
    asked = several(primary, standby, load_balance_hosts="random", target_session_attrs="any")
    seen: set[int] = set()
    for _ in range(200):  # all the same: once in 2**199
        seen.add(await port(asked))
        if len(seen) == 2:
            break
    assert seen == {primary.port, standby.port}


# --- unix sockets


async def test_a_unix_socket_is_named_in_each_of_libpqs_ways(primary: servers.PostgreSQL) -> None:
    folder, number = primary.socket_directory, primary.port
    for text in (
        f"postgresql://postgres@/postgres?host={folder}&port={number}",
        f"postgresql://postgres@{quote(folder, safe='')}:{number}/postgres",
        f"postgresql://postgres@localhost:{number}/postgres?host={folder}",
        f"host={folder} port={number} user=postgres dbname=postgres",
        f"postgresql://postgres@/postgres?host={folder}&port={number}&sslmode=verify-full",
    ):
        assert await ask(text, "SELECT inet_server_addr() IS NULL"), text
    assert "no socket" in await failure(f"host={folder}/nowhere user=postgres")
    assert "no socket" in await failure(f"host={folder} port=1 user=postgres")


async def test_without_a_host_the_usual_places_are_tried(primary: servers.PostgreSQL) -> None:
    assert await port(f"postgresql://postgres@:{primary.port}/postgres") == primary.port


async def test_a_socket_and_a_port_may_stand_in_one_list(primary: servers.PostgreSQL) -> None:
    number = primary.port
    hosts = f"/nowhere,{servers.LOOPBACK}"
    assert await port(f"host={hosts} port={number} user=postgres dbname=postgres") == number


# --- passwords


async def test_ugly_names_and_passwords_log_in(guarded: servers.PostgreSQL) -> None:
    user = quote("u@ /:%é", safe="")
    assert await ask(dsn(guarded, user=f"{user}:x"), "SELECT current_user") == "u@ /:%é"
    secret = quote(PASSWORD, safe="")
    assert await ask(dsn(guarded, user=f"keeper:{secret}"), "SELECT 1") == 1
    escaped = PASSWORD.replace("\\", "\\\\")
    text = f"host=localhost port={guarded.port} user=keeper dbname=postgres password='{escaped}'"
    assert await ask(text, "SELECT 1") == 1


async def test_a_rotated_password_is_fetched_for_the_next_connection(
    guarded: servers.PostgreSQL,
) -> None:
    guarded.execute("CREATE ROLE rotating LOGIN PASSWORD 'one'")
    vault = ["one"]

    async def fetched() -> str:
        await asyncio.sleep(0)
        return vault[-1]

    asked = dsn(guarded, user="rotating:outdated")
    first, second = [parse(asked, password=it) for it in (lambda: vault[-1], fetched)]
    before = [await connect(it, timeout=60) for it in (first, second)]
    guarded.execute("ALTER ROLE rotating PASSWORD 'two'")
    with pytest.raises(ConnectionFailedError, match="password is wrong"):
        await connect(first, timeout=60)
    vault.append("two")
    after = [await connect(it, timeout=60) for it in (first, second)]
    for connection in (*before, *after):  # those that were connected stay so
        assert await connection.fetchval("SELECT current_user") == "rotating"
        await connection.close()


async def test_a_wrong_and_a_missing_password_are_told_without_it(
    guarded: servers.PostgreSQL,
) -> None:
    for password in ("wrong-one", None):
        said = await failure(dsn(guarded, user="keeper"), password=password)
        assert "password is wrong" in said
        assert "wrong-one" not in said
    assert "password is wrong" in await failure(dsn(guarded, user="stranger:x"))


async def test_a_callable_that_fails_is_told_and_no_other_host_is_tried(
    primary: servers.PostgreSQL,
) -> None:
    asked = []

    def vault() -> str:
        asked.append(1)
        raise OSError("the-secret")

    said = await failure(several(primary, primary), password=vault)
    assert "password= callable raised OSError" in said
    assert "the-secret" not in said
    assert asked == [1]
    assert "gave bytes, no str" in await failure(several(primary), password=lambda: b"x")


def pgpass(path: Path, *lines: str, mode: int = 0o600) -> Path:
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


async def test_a_password_file_is_read_host_by_host(
    guarded: servers.PostgreSQL, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"localhost:{guarded.port}:*:keeper:{PASSWORD}"
    lines = ("# kept", "elsewhere:1:db:keeper:wrong", "127.0.0.1:1:*:*:wrong", line)
    asked = dsn(guarded, user="keeper")
    file = pgpass(home / "elsewhere", *lines)
    assert await ask(f"{asked}passfile={file}", "SELECT 1") == 1
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert await ask(asked, "SELECT 1") == 1
    two = asked.replace("@localhost", "@127.0.0.1:1,localhost")
    assert await ask(two, "SELECT 1") == 1
    monkeypatch.delenv("PGPASSFILE")
    file.rename(home / ".pgpass")
    assert await ask(asked, "SELECT 1") == 1
    (home / ".pgpass").unlink()


async def test_a_broken_password_file_is_told_without_its_text(
    guarded: servers.PostgreSQL, tmp_path: Path
) -> None:
    file = pgpass(tmp_path / "broken", "the-secret")
    with pytest.raises(InvalidArgumentError, match="password file") as caught:
        await ask(f"{dsn(guarded, user='keeper')}passfile={file}", "SELECT 1")
    assert "the-secret" not in str(caught.value)


async def test_a_dsn_that_asyncpg_refuses_is_told_with_its_reason(home: Path) -> None:
    for query, told in {
        "sslmode=verify-full": "sslrootcert=system.*root certificate file",
        "sslnegotiation=direct": "direct TLS",
        "ssl_min_protocol_version=3": "No such TLS version",
        "gsslib=none": "gsslib",
    }.items():
        with pytest.raises(InvalidArgumentError, match=told):
            await ask(f"postgresql://u@h/db?{query}", "SELECT 1")


async def test_a_password_file_that_others_may_read_is_not_used(
    guarded: servers.PostgreSQL, tmp_path: Path
) -> None:
    file = pgpass(tmp_path / "open", "*:*:*:keeper:x", mode=0o644)
    with pytest.warns(UserWarning, match="group or world access"):
        said = await failure(f"{dsn(guarded, user='keeper')}passfile={file}")
    assert "password is wrong" in said


async def test_a_service_names_the_server(
    guarded: servers.PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "services").write_text(
        f"[mine]\nhost=localhost\nport={guarded.port}\nuser=keeper\ndbname=postgres\n"
        f"password={PASSWORD}\nsslmode=verify-full\nsslrootcert={guarded.tls.ca}\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert await ask("postgresql:///?service=mine", "SELECT current_user") == "keeper"
    monkeypatch.setenv("PGSERVICE", "mine")
    assert await ask("postgresql://anyone@/", "SELECT current_user") == "anyone"


# --- what else fails


async def test_nothing_at_a_port_an_unknown_host_and_no_database_are_told(
    guarded: servers.PostgreSQL,
) -> None:
    assert "refused" in await failure(several(servers.free_port()))
    assert "host is not known" in await failure("postgresql://u@nowhere.invalid/db")
    asked = dsn(guarded).replace("/postgres", "/nowhere")
    assert "no such database" in await failure(asked)


async def test_a_user_without_the_right_to_connect_is_told(guarded: servers.PostgreSQL) -> None:
    asked = dsn(guarded).replace("/postgres", f"/{quote('d@/é', safe='')}")
    assert "GRANT CONNECT" in await failure(asked)


async def test_too_many_connections_are_told(guarded: servers.PostgreSQL) -> None:
    assert "no connection left" in await failure(dsn(guarded, user="crowded:x"))


# asyncpg leaves a socket to the garbage collector when its time is over just as it connects.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_black_hole_ends_with_the_timeout(primary: servers.PostgreSQL) -> None:
    hole = servers.Proxy(primary.port)
    hole.hold()
    try:
        assert "no answer in time" in await failure(several(hole), timeout=0.2)
        assert "no answer in time" in await failure(several(hole, connect_timeout=1), timeout=None)
    finally:
        hole.close()


async def test_a_server_that_is_no_postgresql_is_told() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await ended(writer)

    async with listening(speak) as number:
        for mode in ("disable", "prefer", "require"):
            assert await failure(several(number, sslmode=mode))


async def test_a_session_that_the_server_ends_is_told(primary: servers.PostgreSQL) -> None:
    async with connected(several(primary)) as connection:
        end = f"SELECT pg_terminate_backend({connection.get_server_pid()})"
        with pytest.raises(asyncpg.PostgresError) as caught:
            await asyncio.gather(
                connection.fetchval("SELECT pg_sleep(60)"), ask(several(primary), end)
            )
    assert "try again" in str(make_connection_error(caught.value, "here"))


async def test_a_setting_that_the_server_does_not_know_is_told(
    primary: servers.PostgreSQL,
) -> None:
    said = await failure(several(primary, options="-c no_such_thing=1"))
    assert "options=" in said


async def test_a_pooler_that_knows_no_options_is_told(pgbouncer: servers.PgBouncer) -> None:
    said = await failure(pgbouncer.url(options="-c search_path=a"))
    assert "ignore_startup_parameters" in said


# --- what a connection is like


async def test_settings_of_the_dsn_reach_the_server(
    primary: servers.PostgreSQL,
) -> None:
    asked = several(primary, application_name="a b", options="-c search_path=x,y -c work_mem=7MB")
    setting = "SELECT concat_ws(' ', {})".format(
        ", ".join(f"current_setting('{it}')" for it in ("application_name", "search_path"))
    )
    assert await ask(asked, setting) == "a b x,y"


async def test_time_limits_and_the_cache_are_passed_on(primary: servers.PostgreSQL) -> None:
    async with connected(
        several(primary), command_timeout=0.5, statement_cache_size=0
    ) as connection:
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT pg_sleep(60)")
        await connection.fetchval("SELECT 1")
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 1


async def test_keep_alive_is_on_the_socket(primary: servers.PostgreSQL) -> None:
    async def option(level: int, name: int, query: str = "") -> int:
        async with connected(f"{several(primary)}{query}") as connection:
            return connection._transport.get_extra_info("socket").getsockopt(level, name)

    tcp = socket.IPPROTO_TCP
    assert await option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert await option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, "keepalives=0") == 0
    assert await option(tcp, socket.TCP_KEEPIDLE, "keepalives_idle=77") == 77
    assert await option(tcp, socket.TCP_KEEPINTVL, "keepalives_interval=78") == 78
    assert await option(tcp, socket.TCP_KEEPCNT, "keepalives_count=9") == 9
    assert await option(tcp, socket.TCP_USER_TIMEOUT, "tcp_user_timeout=7654") == 7654
    with pytest.raises(InvalidArgumentError, match="TCP_KEEPIDLE"):
        await option(tcp, socket.TCP_KEEPIDLE, "keepalives_idle=99999999")


async def test_keep_alive_is_on_the_socket_beneath_tls(guarded: servers.PostgreSQL) -> None:
    async with connected(dsn(guarded, sslmode="require", keepalives_idle=77)) as connection:
        opened = connection._transport.get_extra_info("socket")
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
