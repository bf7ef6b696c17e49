"""Three PostgreSQL servers under Patroni, with three members of etcd, HAProxy and PgBouncer.

All run on loopback, from Debian's packages. Patroni's times are the least that it allows: a leader
that is not heard of is replaced after ``ttl`` seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from servers import (
    DEADLINE_SECONDS,
    LOOPBACK,
    TRUST,
    PgBouncer,
    Proxy,
    Server,
    UnavailableError,
    accepts,
    binaries,
    children,
    ended,
    folder,
    free_port,
    is_gone,
    nobody,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TTL_SECONDS = 20
WHOLE_SECONDS = 240.0
"""A cluster is whole again within this time after a fault."""

PACKAGES = {"patroni": "patroni", "etcd": "etcd-server", "haproxy": "haproxy"}
PARAMETERS = {
    "max_connections": 200,
    "shared_buffers": "32MB",
    "unix_socket_directories": "",
    "wal_keep_size": "512MB",
}
# A dead or demoted server's sessions are closed: no client waits for one that does not answer.
HAPROXY = """
global
    stats socket {socket} level admin
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 1h
    timeout server 1h
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""


def programs() -> dict[str, str]:
    """Return the paths of the programs.

    Raises:
        UnavailableError: One is missing.
    """
    found = {it: shutil.which(it, path=f"{os.environ['PATH']}:/usr/sbin") for it in PACKAGES}
    if missing := [PACKAGES[name] for name, path in found.items() if path is None]:
        raise UnavailableError(f"Patroni's cluster: no binaries; apt install {' '.join(missing)}")
    return {name: str(path) for name, path in found.items()}


class Program:
    """A program that is started again with the same command; its output goes to a file."""

    def __init__(self, directory: Path, name: str, *command: object) -> None:
        self.name, self.directory = name, directory
        self._command = [str(it) for it in command]
        self.start()

    def start(self) -> None:
        """Start it, and leave its number to the shell that ends what the tests forget."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **nobody(),
            )
        (self.directory / f"{self.name}.pid").write_text(str(self.process.pid))

    def pids(self) -> list[int]:
        """Return the numbers of all its processes."""
        return [self.process.pid]

    def kill(self) -> None:
        """SIGKILL to all its processes; ``start`` brings it back with the same data."""
        pids = self.signal(signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)
        wait_until(lambda: all(map(is_gone, pids)), f"{self.name} to end")
        (self.directory / f"{self.name}.pid").unlink()

    def signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to all its processes, and return their numbers."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


class Node(Program):
    """Patroni and its PostgreSQL server."""

    def __init__(
        self, directory: Path, name: str, patroni: str, ports: Iterator[int], etcd_ports: list[int]
    ) -> None:
        self.port, self.rest_port = next(ports), next(ports)
        self.data = directory / f"data-{name}"
        self.doors = [Proxy(it) for it in etcd_ports]
        """The ways to the members of etcd."""
        self.server = Server(f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres")
        file = directory / f"{name}.json"
        file.write_text(json.dumps(self._settings(name)))
        super().__init__(directory, name, patroni, file)

    def _settings(self, name: str) -> dict[str, Any]:
        rest, listen = f"{LOOPBACK}:{self.rest_port}", f"{LOOPBACK}:{self.port}"
        user = {"username": "postgres"}
        return {
            "scope": "tests",
            "name": name,
            "restapi": {"listen": rest, "connect_address": rest},
            # By the older interface: with the newer one, a Patroni before 3.1 may never name a
            # synchronous standby again after a fail-over (patroni/patroni#2779). With use_proxies,
            # it does not ask the members for their own addresses.
            "etcd": {"hosts": [f"{LOOPBACK}:{it.port}" for it in self.doors], "use_proxies": True},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": PARAMETERS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}],
            },
            "postgresql": {
                "listen": listen,
                "connect_address": listen,
                "data_dir": str(self.data),
                "bin_dir": str(binaries("debian")),
                "pgpass": f"{self.data}.pgpass",
                "authentication": {"superuser": user, "replication": user},
                "pg_hba": [*TRUST.splitlines(), f"host replication all {LOOPBACK}/32 trust"],
                "basebackup": [{"checkpoint": "fast"}],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def pids(self) -> list[int]:
        """Return the numbers of all its processes, none of which makes others any more."""
        roots = [self.process.pid]
        with contextlib.suppress(OSError):
            postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
            # A killed one's file stays, and its number may be another process's.
            if str(self.data) in Path(f"/proc/{postmaster}/cmdline").read_text():
                roots.append(postmaster)
        for pid in roots:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return [*roots, *(child for pid in roots for child in children(pid))]

    def ask(self, path: str, body: object = None, *, method: str | None = None) -> tuple[int, str]:
        """Return the status and the answer of Patroni's REST interface; see ``_ask``."""
        return _ask(self.rest_port, path, body, method=method)


def _ask(
    port: int, path: str, body: object = None, *, method: str | None = None
) -> tuple[int, str]:
    """Return the status and the text of an answer by HTTP; status 0: there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}{path}", data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60 if data else 2) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
    except OSError:
        return 0, ""


_found: set[int] = set()


def _find_ports() -> Iterator[int]:
    """Yield free ports, each once, as clusters of one process start at the same time."""
    while True:
        if (port := free_port()) not in _found:
            _found.add(port)
            yield port


class Cluster:
    """The cluster, with a synchronous standby.

    ``url`` leads to the primary by way of HAProxy, ``pgbouncer.url()`` by PgBouncer and HAProxy;
    ``standby_url`` leads to the standbys.

    Raises:
        UnavailableError: A program is missing.
    """

    def __init__(self) -> None:
        paths = programs()
        binaries("debian")
        self.directory, self._remover = folder("locus-patroni-")
        self._programs: list[Program] = []
        self.nodes: list[Node] = []
        self.pgbouncer: PgBouncer | None = None
        self.is_synchronous = True
        ports = _find_ports()
        try:
            etcd_ports = self._start_etcd(paths["etcd"], ports)
            for name in ("n1", "n2", "n3"):
                self.nodes.append(Node(self.directory, name, paths["patroni"], ports, etcd_ports))
            self._start_haproxy(paths["haproxy"], ports)
            self.wait_until_whole()
            wait_until(lambda: accepts(self._standby_port), "HAProxy to start")
            self.pgbouncer = PgBouncer(
                SimpleNamespace(user="postgres", socket_directory=LOOPBACK, port=self._port),  # type: ignore[arg-type]
                pool_size=10,
                settings={"server_login_retry": 1},
            )
        except BaseException:
            self.stop()
            raise

    def _start_etcd(self, path: str, free: Iterator[int]) -> list[int]:
        ports, peers = ([next(free) for _ in range(3)] for _ in range(2))
        urls = [f"http://{LOOPBACK}:{it}" for it in peers]
        everyone = ",".join(f"e{n}={url}" for n, url in enumerate(urls))
        self.etcd = []
        for n, (port, url) in enumerate(zip(ports, urls, strict=True)):
            client = f"http://{LOOPBACK}:{port}"
            options = {
                "name": f"e{n}",
                "data-dir": self.directory / f"e{n}",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": url,
                "initial-advertise-peer-urls": url,
                "initial-cluster": everyone,
                "heartbeat-interval": 200,
                "election-timeout": 1500,
                "enable-v2": "true",
            }
            words = (f"--{name}={value}" for name, value in options.items())
            self.etcd.append(Program(self.directory, f"e{n}", path, *words))
        self._programs += self.etcd
        for port in ports:
            wait_until(lambda port=port: '"true"' in _ask(port, "/health")[1], "etcd to start")
        for it in self.etcd:  # the member of another cluster may have the port, and answer
            assert it.process.poll() is None, f"etcd {it.name} has ended"
        return ports

    def _start_haproxy(self, path: str, ports: Iterator[int]) -> None:
        self._port, self._standby_port = next(ports), next(ports)
        self.url, self.standby_url = (
            f"postgresql://postgres@{LOOPBACK}:{it}/postgres"
            for it in (self._port, self._standby_port)
        )
        self._socket = self.directory / "haproxy.sock"
        text = HAPROXY.format(socket=self._socket)
        for name, port in (("primary", self._port), ("replica", self._standby_port)):
            text += f"listen {name}\n bind {LOOPBACK}:{port}\n option httpchk OPTIONS /{name}\n"
            for node in self.nodes:
                check = f"check port {node.rest_port}"
                text += f" server {node.name} {LOOPBACK}:{node.port} {check}\n"
        file = self.directory / "haproxy.cfg"
        file.write_text(text)
        self._programs.append(Program(self.directory, "haproxy", path, "-db", "-f", file))

    @property
    def hosts_url(self) -> str:
        """URL of the primary that names all servers."""
        hosts = ",".join(f"{LOOPBACK}:{it.port}" for it in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    # --- what the cluster says of itself

    def find_primary(self, beside: Node | None = None) -> Node | None:
        """Return the node that has the leader's lock; ``None`` if there is none beside that one."""
        others = (it for it in self.nodes if it is not beside)
        return next((it for it in others if it.ask("/primary")[0] == 200), None)

    def wait_for_primary(self, beside: Node | None = None) -> Node:
        """Return the node that is the primary now."""
        found: Node = wait_until(
            lambda: self.find_primary(beside), "a primary", seconds=WHOLE_SECONDS
        )
        return found

    def wait_until_whole(self) -> None:
        """Wait for a primary that both of the others follow."""
        try:
            wait_until(self._is_whole, "the cluster to be whole", seconds=WHOLE_SECONDS)
        except TimeoutError as exc:
            logs = [self.directory / f"{it.name}.log" for it in self.nodes]
            ends = "\n".join(it.read_text(errors="replace")[-1500:] for it in logs)
            raise TimeoutError(f"the cluster is not whole: {self._members()}\n{ends}") from exc

    def _members(self) -> tuple[int, str]:
        primary = self.find_primary()
        return primary.ask("/cluster") if primary else (0, "")

    def _is_whole(self) -> bool:
        status, text = self._members()
        members = json.loads(text)["members"] if status == 200 else []
        follow = [it for it in members if it.get("state") in {"running", "streaming"}]
        timelines = {it.get("timeline") for it in members}
        roles = sorted(it["role"] for it in members)
        wanted = ["leader", "replica", "sync_standby" if self.is_synchronous else "replica"]
        is_whole = len(follow) == 3 and len(timelines) == 1 and roles == wanted
        time.sleep(0 if is_whole else 0.2)
        return is_whole

    def set_synchronous(self, value: bool) -> None:
        """Commit with or without a synchronous standby from now on."""
        self.is_synchronous = value
        self.wait_for_primary().ask("/config", {"synchronous_mode": value}, method="PATCH")
        self.wait_until_whole()

    # --- faults

    def switch_over(self) -> None:
        """Make a standby the primary, as for a planned maintenance."""
        primary = self.wait_for_primary()
        status, text = primary.ask("/switchover", {"leader": primary.name})
        assert status == 200, text

    @contextlib.contextmanager
    def cut_from_etcd(self, node: Node) -> Iterator[None]:
        """Let nothing pass between a node and etcd meanwhile, and close no connection."""
        for door in node.doors:
            door.hold()
        try:
            yield
        finally:
            for door in node.doors:
                door.drop()
                door.release()

    @contextlib.contextmanager
    def misled_haproxy(self) -> Iterator[None]:
        """Stop HAProxy's checks of the primary meanwhile: it leads to the one that it knows."""
        self._tell_haproxy("disable")
        try:
            yield
        finally:
            self._tell_haproxy("enable")

    def _tell_haproxy(self, what: str) -> None:
        for node in self.nodes:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self._socket))
                connection.sendall(f"{what} health primary/{node.name}\n".encode())
                answer = connection.recv(1000).strip()
            assert not answer, answer

    def stop(self) -> None:
        """Kill everything, and remove its files."""
        with contextlib.ExitStack() as everything:
            everything.callback(ended, self._remover)
            for program in [*self._programs, *self.nodes]:
                everything.callback(program.kill)
            for node in self.nodes:
                for door in node.doors:
                    everything.callback(door.close)
            if self.pgbouncer:
                everything.callback(self.pgbouncer.stop)
