"""The files of ``deploy/``. ``make lint`` checks them against their schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from locus_store.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text("utf-8"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FILES = [DEPLOY / "Dockerfile", DEPLOY / "docker-compose.yml", *MANIFESTS]
FILES += [ROOT / ".devcontainer" / "devcontainer.json"]


def described() -> list[dict[str, Any]]:
    """Every object of the manifests."""
    return [it for path in MANIFESTS for it in yaml.safe_load_all(path.read_text("utf-8"))]


def pods() -> Iterator[dict[str, Any]]:
    for it in described():
        if "template" in it["spec"]:
            yield it["spec"]["template"]["spec"]


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods():
        yield from [*pod["containers"], *pod.get("initContainers", ())]


def commands() -> Iterator[Any]:
    """Every command line of ``locus-store`` that a file runs."""
    for name, service in COMPOSE["services"].items():
        if "command" in service:
            yield pytest.param(service["command"], id=f"compose-{name}")
    for container in containers():
        yield pytest.param(container["args"], id=f"kubernetes-{container['name']}")
    found = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found
    yield pytest.param(yaml.safe_load(found[1]), id="image")


@pytest.mark.parametrize("path", FILES, ids=lambda it: it.name)
def test_a_file_that_was_not_run_says_so_first(path: Path) -> None:
    assert "not yet run" in path.read_text("utf-8").splitlines()[0]


@pytest.mark.parametrize("command", [*commands()])
def test_a_command_and_its_options_exist(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0, done.output


def test_the_image_copies_all_that_the_wheel_is_built_from(tmp_path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            assert f"!{source}" in ignored
            place = tmp_path / source
            if (ROOT / source).is_dir():
                assert target == source
                shutil.copytree(ROOT / source, place)
            else:
                shutil.copy(ROOT / source, place)
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--wheel", str(tmp_path)]
    subprocess.run(command, check=True)
    assert list((tmp_path / "dist").glob("locus_store-*.whl"))


def test_the_service_runs_without_rights_as_one_user() -> None:
    (user,) = re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE)
    assert int(user) > 0
    for service in ("migrate", "store"):
        assert COMPOSE["services"][service]["read_only"]
        assert COMPOSE["services"][service]["cap_drop"] == ["ALL"]
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"].get("runAsUser", int(user)) == int(user)
    for container in containers():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]


def test_the_probes_ask_paths_of_the_service() -> None:
    paths = set(re.findall(r"127\.0\.0\.1:8321(/\w+)", DOCKERFILE))
    for container in containers():
        probes = (value for key, value in container.items() if key.endswith("Probe"))
        paths |= {it["httpGet"]["path"] for it in probes}
    assert paths == {"/health", "/ready"}


def test_the_objects_of_kubernetes_find_the_pods() -> None:
    (labels,) = [
        it["spec"]["template"]["metadata"]["labels"]
        for it in described()
        if it["kind"] == "Deployment"
    ]
    for it in described():
        selector = it["spec"].get("selector", it["spec"].get("podSelector"))
        if selector:
            assert selector.get("matchLabels", selector).items() <= labels.items(), it["kind"]


def test_no_image_is_taken_by_a_moving_tag() -> None:
    images = [it["image"] for it in COMPOSE["services"].values()]
    images += [it["image"] for it in containers()]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    for image in images:
        assert ":" in image
        assert not image.endswith(":latest")
