"""Servers in containers: the third source of a test server, after a named one and a binary.

Written from the images' documentation, and not yet run: no machine of the project's had Docker.
The choice of the source and the refusals are tested.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import opensearch_servers
import redis_servers
import servers
from servers import UnavailableError, run, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POSTGRESQL: Final = "pgvector/pgvector:0.8.1-pg18"
REDIS: Final = "valkey/valkey:9.0"
OPENSEARCH: Final = f"opensearchproject/opensearch:{opensearch_servers.VERSION}"
ORACLE: Final = "gvenzl/oracle-free:23-faststart"
"""The slim image has no Oracle Text."""

IMAGES: Final = {
    "POSTGRESQL": [f"pgvector/pgvector:0.8.1-pg{version}" for version in (15, 16, 17, 18)],
    "REDIS": ["redis:8.2", "valkey/valkey:8.1", REDIS],
    "OPENSEARCH": ["opensearchproject/opensearch:2.19.3", OPENSEARCH],
}
"""The images of ``make test-docker``, by the name in ``LOCUS_TEST_<NAME>_IMAGE``."""

SUITES: Final = {
    "POSTGRESQL": "tests/backends/postgresql tests/adapters/langgraph tests/session",
    "REDIS": "tests/backends/redis tests/adapters/langgraph tests/session",
    "OPENSEARCH": "tests/backends/opensearch",
}
"""Folders of the tests that run on them."""

PASSWORD: Final = "locus"  # noqa: S105  (of containers that live for a test)
ADMIN_PASSWORD: Final = "Loopback-7-Lighthouse"  # noqa: S105  (OpenSearch refuses a weak one)

T = TypeVar("T")


class Stoppable(Protocol):
    def stop(self) -> Any: ...


def first_of(name: str, *sources: Callable[[], T]) -> T:
    """Return the server of the first source that has one.

    Args:
        name: As in ``LOCUS_TEST_<NAME>_IMAGE``, which leaves the last source only.
        sources: In their order; the last starts a container.

    Raises:
        UnavailableError: None has; the message has the reason of each.
    """
    asked = sources[-1:] if os.environ.get(f"LOCUS_TEST_{name}_IMAGE") else sources
    reasons = []
    for source in asked:
        try:
            return source()
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError("; ".join(reasons))


def image_of(name: str, default: str) -> str:
    """Return the image that ``LOCUS_TEST_<NAME>_IMAGE`` asks for, else the default."""
    return os.environ.get(f"LOCUS_TEST_{name}_IMAGE") or default


def started(image: str, port: int, environment: dict[str, str] | None = None) -> tuple[Any, str]:
    """Start a container.

    Returns:
        The container, and ``host:port`` of the port.

    Raises:
        UnavailableError: testcontainers is not installed, or Docker does not answer.
    """
    try:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer
    except ImportError:
        raise UnavailableError(f"{image}: pip install --group dev for testcontainers") from None
    try:
        container = DockerContainer(image).with_exposed_ports(port).with_envs(**environment or {})
        container.start()
    except DockerException as error:
        raise UnavailableError(f"{image}: Docker does not answer: {error}") from error
    return container, f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


class PostgreSQL(servers.Server):
    """A PostgreSQL server in a container.

    Args:
        image: With pgvector.

    Raises:
        UnavailableError: See ``started``.
    """

    def __init__(self, image: str | None = None) -> None:
        wanted = image or image_of("POSTGRESQL", POSTGRESQL)
        environment = {"POSTGRES_PASSWORD": PASSWORD}
        self._container, place = started(wanted, 5432, environment)
        super().__init__(f"postgresql://postgres:{PASSWORD}@{place}/postgres")
        with _ended_on_error(self._container):
            # While the image sets the database up, the server listens on its socket only.
            wait_until(self._answers, f"{wanted} to answer")

    def _answers(self) -> bool:
        import asyncpg

        try:
            run(self.ask("postgres", lambda connection: connection.fetchval("SELECT 1")))
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


class Redis(redis_servers.Server):
    """A server of Redis or Valkey in a container.

    Args:
        image: Of either.

    Raises:
        UnavailableError: See ``started``.
    """

    def __init__(self, image: str | None = None) -> None:
        wanted = image or image_of("REDIS", REDIS)
        self._container, place = started(wanted, 6379)
        super().__init__(f"redis://{place}/0")
        with _ended_on_error(self._container):
            wait_until(self._answers, f"{wanted} to answer")

    def _answers(self) -> bool:
        import redis

        try:
            return bool(self.ask("PING"))
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


class Oracle:
    """Oracle Database Free in a container.

    Args:
        image: With Oracle Text.

    Raises:
        UnavailableError: See ``started``.
    """

    USER: Final = "locus"

    def __init__(self, image: str | None = None) -> None:
        wanted = image or image_of("ORACLE", ORACLE)
        environment = {
            "ORACLE_PASSWORD": PASSWORD, "APP_USER": self.USER, "APP_USER_PASSWORD": PASSWORD,
        }  # fmt: skip
        self._container, place = started(wanted, 1521, environment)
        self.place = {"dsn": f"{place}/FREEPDB1", "user": self.USER, "password": PASSWORD}
        with _ended_on_error(self._container):
            wait_until(self._answers, f"{wanted} to answer", seconds=600)

    def _answers(self) -> bool:
        import oracledb

        try:
            with oracledb.connect(**self.place):
                return True
        except oracledb.Error:
            return False

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


class OpenSearch(opensearch_servers.Server):
    """A server of OpenSearch in a container, with its security plugin: TLS and a user.

    Args:
        image: Of OpenSearch.

    Raises:
        UnavailableError: See ``started``.
    """

    def __init__(self, image: str | None = None) -> None:
        wanted = image or image_of("OPENSEARCH", OPENSEARCH)
        environment = {
            "discovery.type": "single-node", "OPENSEARCH_JAVA_OPTS": "-Xms512m -Xmx512m",
            "OPENSEARCH_INITIAL_ADMIN_PASSWORD": ADMIN_PASSWORD,
        }  # fmt: skip
        self._container, place = started(wanted, 9200, environment)
        super().__init__(f"https://admin:{ADMIN_PASSWORD}@{place}")
        with _ended_on_error(self._container):
            wait_until(self.answers, f"{wanted} to answer", seconds=300)
            self.prepare()

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


def postgresql() -> servers.Server:
    """Return the server that is named, else one of the wheel, of Debian, or in a container."""
    if url := os.environ.get("LOCUS_TEST_POSTGRESQL_URL"):
        return servers.Server(url)
    here = (lambda: servers.PostgreSQL("18"), lambda: servers.PostgreSQL("debian"))
    return first_of("POSTGRESQL", *here, PostgreSQL)


def redis_server() -> redis_servers.Server:
    """Return the server that is named, else Valkey of the wheel, or one in a container."""
    if url := os.environ.get("LOCUS_TEST_REDIS_URL"):
        return redis_servers.Server(url)
    return first_of("REDIS", lambda: redis_servers.Redis("valkey"), Redis)


def opensearch(folder: Path) -> opensearch_servers.Server:
    """Return the server that is named, else the node of the run, or one in a container.

    Args:
        folder: Common to all processes of the run.
    """
    if url := os.environ.get("LOCUS_TEST_OPENSEARCH_URL"):
        server = opensearch_servers.Server(url)
        server.prepare()
        return server
    return first_of("OPENSEARCH", lambda: opensearch_servers.shared(folder), OpenSearch)


@contextlib.contextmanager
def _ended_on_error(container: Stoppable) -> Any:
    try:
        yield
    except BaseException:
        container.stop()
        raise


def main() -> None:
    """Print name, image and folders of each run of ``make test-docker``."""
    for name, images in IMAGES.items():
        for image in images:
            print(name, image, SUITES[name])


if __name__ == "__main__":
    main()
