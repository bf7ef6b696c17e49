"""The sources of the tests' servers: a named one, a binary, a container; and no server at all."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import containers
import pytest
import servers

HERE = Path(__file__).parent
KINDS = [containers.PostgreSQL, containers.Redis, containers.Oracle, containers.OpenSearch]


@pytest.fixture
def refusing_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Docker: nothing listens there."""
    monkeypatch.setenv("DOCKER_HOST", f"tcp://{servers.LOOPBACK}:1")


def no_binary() -> servers.Server:
    raise servers.UnavailableError("no binaries")


def test_the_server_that_is_named_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUS_TEST_POSTGRESQL_URL", "postgresql://me@db.example.com:6543/x")
    monkeypatch.setenv("LOCUS_TEST_REDIS_URL", "redis://cache.example.com:6380/3")
    assert containers.postgresql().host == "db.example.com"
    assert containers.redis_server().port == 6380


def test_the_first_source_that_has_a_server_is_taken() -> None:
    assert containers.first_of("POSTGRESQL", no_binary, lambda: 2, lambda: 3) == 2


def test_an_image_that_is_asked_for_leaves_the_container_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCUS_TEST_POSTGRESQL_IMAGE", "pgvector/pgvector:0.8.1-pg15")
    assert containers.first_of("POSTGRESQL", lambda: 1, lambda: 2) == 2
    assert containers.image_of("POSTGRESQL", "other") == "pgvector/pgvector:0.8.1-pg15"


def test_the_reasons_of_all_sources_are_told(refusing_docker: None) -> None:
    with pytest.raises(servers.UnavailableError) as caught:
        containers.first_of("POSTGRESQL", no_binary, containers.PostgreSQL)
    assert str(caught.value).startswith("no binaries; pgvector/pgvector:")
    assert "Docker does not answer" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_ci", [False, True])
def test_without_docker_a_container_is_skipped_and_fails_in_ci(
    kind: type, is_ci: bool, refusing_docker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true" if is_ci else "")
    with (
        pytest.raises(pytest.fail.Exception if is_ci else pytest.skip.Exception) as caught,
        servers.started(kind),
    ):
        pytest.fail("a container without Docker")
    assert "Docker does not answer" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_without_testcontainers_the_remedy_is_told(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with pytest.raises(servers.UnavailableError, match="pip install --group dev"):
        kind()


def test_testcontainers_is_imported_only_for_a_container() -> None:
    code = "import sys, containers; assert not {'testcontainers', 'docker'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_images_name_a_version() -> None:
    images = [it for found in containers.IMAGES.values() for it in found]
    for image in (
        *images,
        containers.POSTGRESQL,
        containers.REDIS,
        containers.ORACLE,
        containers.OPENSEARCH,
    ):
        assert image.partition(":")[2] not in {"", "latest"}
    assert containers.POSTGRESQL in containers.IMAGES["POSTGRESQL"]
    assert importlib.util.find_spec("testcontainers") is not None
