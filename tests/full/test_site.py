"""The documentation as a whole: the site, its pictures, and what its pages claim to have all of."""

from __future__ import annotations

import ast
import codeop
import inspect
import re
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
import yaml
from test_docs import PAGES, ROOT, Block, blocks

import locus_store
from locus_store import (
    Encryption,
    LocalKeyRing,
    LocusStoreError,
    Quota,
    open_checkpointer,
    open_store,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

DOCS = ROOT / "docs"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    options = ("-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "trees"))
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(site)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {it.stem for it in site.glob("*.html")} >= {it.stem for it in DOCS.glob("*.md")}
    shown = "".join(it.read_text("utf-8") for it in site.rglob("*.html"))
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', shown)
    assert loaded == [], "the site needs no network"
    boxes = r'<(?:div|aside)[^>]*class="[^"]*(?:admonition error|system-message)[^"]*".*?</p>'
    pages = {it.stem: it.read_text("utf-8") for it in site.glob("*.html")}
    del pages["search"]  # it tells a browser without scripts that it needs them
    wrong = [name for name, text in pages.items() if re.search(boxes, text, re.DOTALL)]
    assert wrong == [], "no page shows an error of the theme"
    assert f"[{locus_store.__version__}]" in (site / "changelog.html").read_text("utf-8")


def test_the_api_has_every_public_name() -> None:
    page = (DOCS / "api.rst").read_text("utf-8")
    names = set(locus_store.__all__) - {it.__name__ for it in errors()}
    shown = set(re.findall(r"locus_store\.(\w+)$", page, re.MULTILINE)) | {"CheckpointerContract"}
    assert names - shown == set()
    assert "automodule:: locus_store.errors" in page


def test_the_pictures_are_those_that_the_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "images" / "draw.py"))["PICTURES"]
    stale = [
        name
        for name, draw in drawn.items()
        if (DOCS / "images" / name).read_text("utf-8") != draw()
    ]
    assert stale == [], "python docs/images/draw.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_every_picture_is_there_and_says_what_it_shows(page: Path) -> None:
    found = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text("utf-8"))
    assert [it for it in found if not it[0] or not (page.parent / it[1]).exists()] == []


# --- what is pasted


class Console:
    """Takes lines as ``python -m asyncio`` does, and runs nothing."""

    def __init__(self) -> None:
        self._compile = codeop.CommandCompiler()
        self._compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def paste(self, code: str) -> str:
        """Return the unfinished rest; raise ``SyntaxError`` as the console does."""
        kept: list[str] = []
        for line in [*code.splitlines(), ""]:
            kept.append(line)
            if self._compile("\n".join(kept)) is not None:
                kept = []
        return "\n".join(kept).strip()


def pasted(page: Path) -> Iterator[Block]:
    """The blocks that are no file of their own."""
    for block in blocks(page):
        if block.language == "python" and not re.match(r"# (\w+\.py)\n", block.code):
            yield block


def to_paste() -> Iterator[Any]:
    for page in PAGES:
        if page.name != "README.md":  # a whole script
            yield pytest.param(page, id=page.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("page", [*to_paste()])
def test_what_stands_in_no_file_can_be_pasted_into_a_console(page: Path) -> None:
    for block in pasted(page):
        where = f"{page.name}:{block.line}"
        try:
            assert Console().paste(block.code) == "", where
        except SyntaxError as exc:
            pytest.fail(f"{where}: {exc}")


# --- what is deployed


def described() -> Iterator[Any]:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml":
                yield yaml.safe_load(block.code)


def test_what_is_shown_of_kubernetes_is_whole() -> None:
    jobs = [it for it in described() if "kind" in it]
    assert jobs
    for it in jobs:
        assert it["apiVersion"] == "batch/v1"
        assert it["metadata"]["name"]
        pod = it["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
    pods = [it["spec"]["template"]["spec"]["containers"] for it in jobs]
    pods += [it["initContainers"] for it in described() if "initContainers" in it]
    for container in (one for pod in pods for one in pod):
        assert {"name", "image", "command", "env"} <= container.keys()
        assert {it["name"] for it in container["env"]} == {"LOCUS_STORE_URL"}


def test_every_compose_file_is_complete() -> None:
    files = [it for it in described() if isinstance(it.get("services"), dict)]  # not ADK's
    assert files
    for file in files:
        volumes = set(file.get("volumes", ()))
        for service in file["services"].values():
            assert {"build", "image"} & service.keys()
            assert set(service.get("depends_on", ())) <= file["services"].keys()
            sources = {it.partition(":")[0] for it in service.get("volumes", ())}
            assert {it for it in sources if not it.startswith("./")} <= volumes
            if "command" in service:
                assert service["environment"].keys() == {"LOCUS_STORE_URL"}


# --- errors


def errors() -> list[type[LocusStoreError]]:
    found = vars(locus_store.errors).values()
    return [it for it in found if inspect.isclass(it) and issubclass(it, LocusStoreError)]


def section(name: str) -> str:
    page = (DOCS / "errors.md").read_text("utf-8")
    return page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


class Order(pydantic.BaseModel):
    total: int


class MyCheckpointer(locus_store.BaseCheckpointer):
    capabilities = locus_store.CheckpointerCapabilities()

    async def save(self, state, thread_id, checkpoint_id=None, metadata=None):
        raise NotImplementedError

    async def load(self, thread_id, checkpoint_id=None):
        raise NotImplementedError

    async def list_checkpoints(self, thread_id, limit=10):
        raise NotImplementedError


async def save_after_the_turn(checkpointer: locus_store.BaseCheckpointer) -> None:
    async with checkpointer.turn("t1"):
        await checkpointer.release_turn("t1")
        await checkpointer.save({}, "t1")


async def unanswered(key: str) -> None:
    raise OSError("no answer")


async def provoked() -> Iterator[Callable[[], Awaitable[Any]]]:
    """One call for each message of the page."""
    url = "sqlite:///errors.db"
    mine, other = (open_checkpointer(url, state_type=dict) for _ in range(2))
    await mine.save({"said": ["a"]}, "t1", "v1")
    loaded = await mine.load("t1")
    await other.save({"said": ["b"]}, "t1", "v2")
    await mine.save({"said": ["a"]}, "t2")
    yield lambda: mine.save(loaded, "t1")
    yield lambda: mine.save({}, "t1", parent_checkpoint_id="v9")
    await mine.backend.claim_thread("t1", "alice")
    yield lambda: mine.backend.claim_thread("t1", "bob")
    yield lambda: MyCheckpointer().search("words")
    yield lambda: mine.save({"when": {"at": float("nan")}}, "t1")
    yield lambda: open_checkpointer(url, state_type=Order).load("t1")
    yield lambda: mine.load("")
    yield partial(save_after_the_turn, mine)
    with suppress(OSError):
        await mine.effect("t1", "pay", unanswered)
    yield lambda: mine.effect("t1", "pay", unanswered)
    limited = open_checkpointer("sqlite:///limited.db", state_type=dict)
    await limited.set_quota(Quota(threads=0))
    yield lambda: limited.save({}, "t1")
    sealed = Encryption(LocalKeyRing({"k": bytes(32)}, "k"), open_store("memory://"))
    yield lambda: open_checkpointer(url, encryption=sealed, state_type=dict).load("t1")
    yield lambda: open_checkpointer("sqlite:///empty.db", auto_migrate=False).load("t1")
    yield lambda: open_checkpointer("sqlite:////nowhere/agents.db").load("t1")
    with closing(sqlite3.connect("errors.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield lambda: open_checkpointer(f"{url}?busy_timeout_seconds=0").save({}, "t1")
        cut = "UPDATE locus_checkpoints SET payload = substr(payload, 1, length(payload) - 1)"
        database.execute(cut)
        database.execute("COMMIT")
    yield lambda: open_checkpointer(url, state_type=dict).load("t1")
    sys.modules["asyncpg"] = None  # put back by the test
    yield lambda: open_checkpointer("postgresql://app@db.example.com/agents").load("t1")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_every_error_is_shown_with_its_message_and_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "asyncpg", sys.modules.get("asyncpg"))
    left = {it.__name__ for it in errors()} - {"LocusStoreError"}
    async for call in provoked():
        with pytest.raises(LocusStoreError) as told:
            await call()
        name = told.type.__name__
        left.discard(name)
        message = str(told.value).replace(str(tmp_path), "/srv/app")
        message = re.sub(r"^turn \d+", "turn 7", message)
        message = re.sub(r"2\S+T\S+\+00:00", "2026-11-27T10:00:00+00:00", message)
        message = message.replace(f'-e "{ROOT}[', '"/path/to/locus-store[')
        assert f"```text\n{message}\n```\n" in section(name)
    assert left == set()


def test_every_error_has_a_cause_before_its_message_and_a_remedy_behind() -> None:
    for name in (it.__name__ for it in errors() if it is not LocusStoreError):
        cause, _, rest = section(name).partition("```text\n")
        assert len(cause.split()) > 3, name
        assert len(rest.partition("```")[2].split()) > 3, name
