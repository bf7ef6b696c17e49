"""What the README and docs/ show is run: Python as it stands, commands where nothing is installed.

The blocks of a page share one directory and one namespace, in their order. A block may use
``await`` at its top level; one that begins with a comment ``# name.py`` is that file. A ``text``
block right behind a ``python`` or ``sh`` block is what that one prints.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    """Of its first line of code in the page."""

    follows: bool
    """Nothing but empty lines stands between the block before and this one."""


def blocks(page: Path) -> Iterator[Block]:
    text, end = page.read_text(encoding="utf-8"), 0
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found[1], found[2], line, follows=not text[end : found.start()].strip())
        end = found.end()


def pages(*languages: str) -> list[Any]:
    return [
        pytest.param(page, id=page.relative_to(ROOT).as_posix())
        for page in PAGES
        if any(it.language in languages for it in blocks(page))
    ]


@pytest.mark.parametrize("page", pages("python", "sh"))
def test_every_block_of_a_page_does_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    environment = {**os.environ, "LOCUS_STORE_URL": f"sqlite:///{tmp_path / 'agents.db'}"}
    printed = None
    with asyncio.Runner() as loop:
        for block in blocks(page):
            if block.language == "python":
                run_python(page, block, namespace, loop)
            elif block.language == "sh":
                for command in block.code.replace("\\\n", " ").splitlines():
                    run_command(command, environment)
            elif block.language == "text" and block.follows and printed is not None:
                assert block.code.split() == printed.split(), f"{page.name}:{block.line}"
            printed = capfd.readouterr().out


def run_python(page: Path, block: Block, namespace: dict[str, Any], loop: asyncio.Runner) -> None:
    source = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's line
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if named := re.match(r"# (\w+\.py)\n", block.code):
        Path(named[1]).write_text(block.code, encoding="utf-8")
    code = compile(source, str(page), "exec", flags=flags, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(eval(code, namespace))  # noqa: S307  (our own pages)
    else:
        exec(code, namespace)  # noqa: S102  (our own pages)


def run_command(command: str, environment: dict[str, str]) -> None:
    """Run what is ours; of what would install or last long, check that it exists."""
    name, _, rest = command.partition("#")[0].strip().partition(" ")
    if name == "export":
        environment.update([rest.split("=", 1)])
    elif name in {"locus-store", "alembic", "python"}:
        run_here(name, command, environment)
    elif name == "make":
        assert rest.split()[0] in targets(), command
    elif name == "pip":
        assert set(re.findall(r"\[(\w+)\]", rest)) <= extras(), command
    else:
        assert name in {"", ".ci/run", "pre-commit"}, f"cannot check: {command}"


def run_here(name: str, command: str, environment: dict[str, str]) -> None:
    environment = {
        **environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
    }
    if name == "alembic":  # at the top of the checkout, which stays as it is
        environment["LOCUS_STORE_URL"] = f"sqlite:///{Path('alembic.db').absolute()}"
    subprocess.run(
        ["/bin/sh", "-c", command],
        check=True,
        cwd=ROOT if name == "alembic" else None,
        env=environment,
    )


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    targets = [it for it in LINK.findall(page.read_text("utf-8")) if "://" not in it]
    broken = [it for it in targets if not (page.parent / it.partition("#")[0]).exists()]
    assert not broken


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text("utf-8")))
    assert {f"docs/{it.name}" for it in (ROOT / "docs").glob("*.md")} <= linked


def test_the_figures_of_the_readme_are_those_that_were_measured_last() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## How it grows")[2]
    rows = [it for it in section.partition("\n## ")[0].splitlines() if it.startswith("|")]
    measured = (ROOT / "docs" / "growth.md").read_text("utf-8").splitlines()
    assert rows
    assert [it for it in rows if it not in measured] == []


def test_every_error_has_its_remedy_in_the_docs() -> None:
    from locus_store import errors

    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    named = {name for name, it in vars(errors).items() if inspect.isclass(it)}
    assert {it for it in named if f"`{it}`" not in page} == set()


def test_the_changelog_has_this_version() -> None:
    from locus_store import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
