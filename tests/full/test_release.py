"""The release: sdist and wheel, their versions, and the workflows that build them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
import yaml

from locus_store import __version__

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TESTED_PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True)
    return folder


def installed(archive: Path, folder: Path) -> dict[str, bytes]:
    """Install an archive without its dependencies; return its files, but for those of pip."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--no-compile", "--target", folder, archive], check=True)
    files = (it for it in folder.rglob("*") if it.is_file())
    return {
        str(it.relative_to(folder)): it.read_bytes()
        for it in files
        if it.name not in {"RECORD", "direct_url.json", "locus-store"}
    }


@cache
def script(name: str) -> ModuleType:
    """Return a script of ``.ci`` as a module."""
    loader = SourceFileLoader(name, str(ROOT / ".ci" / name))
    spec = spec_from_loader(name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_sdist_and_the_wheel_install_the_same_files(built: Path, tmp_path: Path) -> None:
    sdist = installed(next(built.glob("*.tar.gz")), tmp_path / "sdist")
    wheel = installed(next(built.glob("*.whl")), tmp_path / "wheel")
    assert sdist == wheel
    assert "locus_store/py.typed" in wheel
    assert "locus_store/_alembic/env.py" in wheel


def test_an_installed_wheel_migrates_a_database(built: Path, tmp_path: Path) -> None:
    installed(next(built.glob("*.whl")), tmp_path / "site")
    code = (
        "import locus_store; print(locus_store.__file__); "
        "from locus_store.__main__ import main; main()"
    )
    place = ["--url", f"sqlite:///{tmp_path}/new.db"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    for command in ("upgrade", "check"):
        done = subprocess.run(
            [sys.executable, "-c", code, "db", command, *place],
            check=True, capture_output=True, text=True, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.stdout.startswith(str(tmp_path / "site"))


def test_the_wheel_holds_the_package_only(built: Path) -> None:
    with ZipFile(next(built.glob("*.whl"))) as wheel:
        folders = {it.partition("/")[0] for it in wheel.namelist()}
    assert folders == {"locus_store", f"locus_store-{__version__}.dist-info"}


def test_the_sdist_holds_no_leftovers(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = sdist.getnames()
    ugly = (".venv", "__pycache__", ".hypothesis", "build/", "site/", ".db")
    assert [it for it in names if any(part in it for part in ugly)] == []


def test_every_python_of_the_classifiers_is_tested() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [it.rpartition(" ")[2] for it in project["classifiers"] if "Python :: 3." in it]
    assert said == TESTED_PYTHONS


def test_the_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    changelog = "## [Unreleased]\n\n- new\n\n## [1.2.0] - 2027-01-01\n\n- old\n\n## [1.1.0]\n- x\n"
    assert script("release").notes_of("1.2.0", changelog) == "- old\n"
    with pytest.raises(SystemExit, match=r"no section \[1\.3\.0\]"):
        script("release").notes_of("1.3.0", changelog)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda it: it.name)
def test_a_workflow_says_in_its_first_lines_that_it_never_ran(path: Path) -> None:
    """Take the words away from a file once it has run."""
    assert "not yet run" in " ".join(path.read_text().splitlines()[:2]).replace(
        "never yet", "not yet"
    )


def test_the_jobs_of_ci_run_each_test_once() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    parts = workflow["jobs"]["tests"]["strategy"]["matrix"]["part"]
    folders = sorted(folder for it in parts if it != "rest" for folder in it.split())
    tree = ROOT / "tests"
    whole = [f"tests/{it}" for it in ("adapters", "cli", "session")]
    backends = [
        f"tests/backends/{it.name}"
        for it in (tree / "backends").iterdir()
        if list(it.rglob("test_*.py"))
    ]
    assert folders == sorted(whole + backends)
    assert "rest" in parts
    makefile = (ROOT / "Makefile").read_text()
    assert "FOLDERS := tests/adapters tests/backends tests/cli tests/session" in makefile


def test_storages_without_a_server_need_nothing_of_posix() -> None:
    """A few tests of what ``make portable`` runs: imports, saves, deletions."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "without_posix"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    files = ["tests/contracts/test_checkpointers.py", "tests/cli/test_cli.py"]
    command += ["--everyday", "--storage=memory", "--storage=sqlite", "-m", "not posix"]
    chosen = "(TestCheckpointer and (delete or saved)) or upgrade"
    done = subprocess.run(
        [*command, "-k", chosen, *files],
        check=False, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
