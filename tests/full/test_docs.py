"""The code and commands of the README and docs/ are run.

What the pages claim as a whole is looked at in ``test_site.py``.

The blocks of a page share one directory and one namespace, in their order. A block may use
``await`` at its top level; one that begins with a comment ``# name.py`` is that file. A ``text``
block right behind a ``python`` or ``sh`` block is what that one prints.

``db.example.com`` is a real PostgreSQL with an empty database for the page, and
``pgbouncer.example.com`` a real PgBouncer before it; ``sql`` blocks run there as the superuser, and
so does every user of a URL that the page does not create as a role. ``redis.example.com`` is a real
Valkey, ``cluster.example.com`` a real cluster, both empty where a block first names them. Oracle's
page runs over a double, and so does the bucket ``oci://example/agents``. ``s3://agents/prod`` is
one of SeaweedFS. ``search.example.com`` is a real OpenSearch. Of a ``yaml`` block, the commands
that are ours are run.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import json
import logging
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from oracle_twin import TwinServer
from services import Service

from benchmarks.storms import nodes
from locus_store import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import servers

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "frameworks").glob("*.md")),
    *sorted(RESULTS.glob("*.md")),
]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SERVER = re.compile(
    r"(postgresql|postgresql\+asyncpg)://(\w+)(?::\w+)?@(db|pgbouncer)\.example\.com(?::\d+)?/\w+"
)
REDIS = re.compile(r"(redis|redis\+cluster)://(redis|cluster)\.example\.com(?::\d+)?(?:/0)?")
SERVICE = "http://127.0.0.1:8321"
SEARCH = re.compile(r"(?<=opensearch://)search\.example\.com:9200/agents")
OCI = re.compile(r"oci://example/agents(?:/(\w+))?")
S3 = re.compile(r"s3://agents/prod\b")
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
RULE = re.compile(r"\|(?: *:?-+:? *\|)+")
DSN = re.compile(r"`(postgres\w*://[^`]*)`")
ROLE = re.compile(r"^CREATE ROLE (\w+)", re.MULTILINE)


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


@dataclass
class World:
    """The folder that a page's blocks run in."""

    page: Path
    environment: dict[str, str]
    server: servers.Server | None
    pooler: Callable[[], servers.PgBouncer]
    redis: Callable[[str], str]
    service: Callable[[], str]
    bucket: Callable[[str], str]
    s3: Callable[[], str]
    index: Callable[[], str]
    database: str
    loop: asyncio.Runner
    namespace: dict[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        return ROLE.findall("".join(it.code for it in blocks(self.page) if it.language == "sql"))

    def real(self, text: str) -> str:
        """With the addresses of the servers that stand for the page's."""
        text = OCI.sub(lambda shown: self.bucket(shown[1] or ""), text)
        text = S3.sub(lambda _: self.s3(), text)
        text = SEARCH.sub(lambda _: self.index(), text)
        text = REDIS.sub(self._redis, SERVER.sub(self._url, text))
        return text.replace(SERVICE, self.service()) if SERVICE in text else text

    def _redis(self, shown: re.Match[str]) -> str:
        return self.redis(shown[1])

    def _url(self, shown: re.Match[str]) -> str:
        scheme, user, host = shown.groups()
        role = user if user in self.roles else None
        place = self.pooler() if host == "pgbouncer" else self.server
        assert place is not None
        return place.url(self.database, user=role).replace("postgresql", scheme, 1)

    def run(self, block: Block) -> None:
        code = self.real(block.code)
        if block.language == "python":
            run_python(self.page, block.line, code, self.namespace, self.loop)
        elif block.language == "sh":
            for command in code.replace("\\\n", " ").splitlines():
                run_command(command, self.environment)
        elif block.language == "sql":
            assert self.server is not None
            self.server.execute(code, self.database)
        elif block.language == "yaml":
            for command in commands(yaml.safe_load(code)):
                run_command(command, self.environment)

    def made_roles(self) -> list[str]:
        """Those of the page's that are there: a role is of the whole server."""
        if self.server is None:
            return []
        asked = "SELECT rolname FROM pg_roles WHERE rolname = ANY ($1)"
        return [role for (role,) in self.server.fetch(asked, self.roles)]

    def drop_roles(self) -> None:
        for role in self.made_roles():
            assert self.server is not None
            self.server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}", self.database)


@pytest.fixture
def world(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    environment = {**os.environ, "LOCUS_STORE_URL": f"sqlite:///{tmp_path / 'agents.db'}"}
    if page.name == "oracle.md":
        request.getfixturevalue("oracle_double")
    server, database = None, ""
    if any(it.language == "sql" or SERVER.search(it.code) for it in blocks(page)):
        server = request.getfixturevalue("postgresql")
        database = request.getfixturevalue("database").partition("?")[0].rpartition("/")[2]
        if programs := getattr(server, "binaries", None):
            environment["PATH"] = f"{environment['PATH']}{os.pathsep}{programs}"
    with asyncio.Runner() as loop:
        made = World(
            page=page,
            environment=environment,
            server=server,
            pooler=lambda: request.getfixturevalue("pgbouncer"),
            redis=functools.cache(lambda scheme: _redis(request, scheme)),
            service=lambda: request.getfixturevalue("service"),
            bucket=lambda prefix: str(request.getfixturevalue("bucket").url(prefix)),
            s3=lambda: str(request.getfixturevalue("s3_place").url()),
            index=lambda: str(request.getfixturevalue("index").place),
            database=database,
            loop=loop,
            namespace={"__name__": f"docs_{page.stem}"},
        )
        if theirs := made.made_roles():
            pytest.skip(f"LOCUS_TEST_POSTGRESQL_URL has a role {theirs[0]} already")
        yield made
        made.drop_roles()
    logging.getLogger("locus_store").setLevel(logging.NOTSET)  # a page sets it
    for name in {it.stem for it in tmp_path.glob("*.py")} & sys.modules.keys():
        del sys.modules[name]  # another page may have a file of that name


@pytest.fixture
def oracle_double(tmp_path: Path, migrated: Path) -> Iterator[None]:
    """The database that stands in for the page's own; there is no Oracle here."""
    server = TwinServer(Path(shutil.copyfile(migrated, tmp_path / "twin.db")))
    with server.in_its_place():
        yield


@pytest.fixture
def service() -> Iterator[str]:
    """URL of what stands for the page's service."""
    made = Service(MemoryBackend())
    yield made.url
    made.stop()


def _redis(request: pytest.FixtureRequest, scheme: str) -> str:
    if scheme == "redis":
        return str(request.getfixturevalue("redis_url"))
    cluster = request.getfixturevalue("redis_cluster")
    cluster.flush()
    return str(cluster.url())


@pytest.mark.parametrize("page", pages("python", "sh", "sql", "yaml"))
def test_every_block_of_a_page_does_what_it_shows(
    page: Path, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = None
    for block in blocks(page):
        if block.language == "text" and block.follows and printed is not None:
            assert block.code.split() == printed.split(), f"{page.name}:{block.line}"
        world.run(block)
        printed = capfd.readouterr().out


def commands(described: Any) -> Iterator[str]:
    """Return our commands that a Kubernetes object or a workflow runs."""
    if isinstance(described, dict):
        for name, value in described.items():
            if name == "command" and isinstance(value, list):
                yield shlex.join(value)
            elif name == "run" and isinstance(value, str):
                yield from value.splitlines()
            else:
                yield from commands(value)
    elif isinstance(described, list):
        for it in described:
            yield from commands(it)


def run_python(
    page: Path, line: int, text: str, namespace: dict[str, Any], loop: asyncio.Runner
) -> None:
    source = "\n" * (line - 1) + text  # so that a traceback names the page's line
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if named := re.match(r"# (\w+\.py)\n", text):
        Path(named[1]).write_text(text, encoding="utf-8")
    code = compile(source, str(page), "exec", flags=flags, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(eval(code, namespace))  # noqa: S307  (our own pages)
    else:
        exec(code, namespace)  # noqa: S102  (our own pages)


def run_command(command: str, environment: dict[str, str]) -> None:
    """Run what is ours; of what would install or last long, check that it exists."""
    name, _, rest = command.partition("#")[0].strip().partition(" ")
    if name == "export":
        environment.update(it.split("=", 1) for it in shlex.split(rest))
    elif name in {"locus-store", "alembic", "python", "psql", "curl"}:
        run_here(name, command, environment)
    elif name == "make":
        assert rest.split()[0] in targets(), command
    elif name == "pip":
        assert set(re.findall(r"\[(\w+)\]", rest)) <= extras(), command
    else:
        others = {"", ".ci/run", "pre-commit", "kubectl", "uvicorn"}
        assert name in others, f"cannot check: {command}"


def run_here(name: str, command: str, environment: dict[str, str]) -> None:
    environment = {
        **environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
    }
    if name == "alembic" and environment["LOCUS_STORE_URL"].startswith("sqlite"):
        # At the top of the checkout, which stays as it is.
        environment["LOCUS_STORE_URL"] = f"sqlite:///{Path('alembic.db').absolute()}"
    if name == "psql" and shutil.which(name, path=environment["PATH"]) is None:
        pytest.skip("no psql beside the server of LOCUS_TEST_POSTGRESQL_URL")
    subprocess.run(
        ["/bin/sh", "-c", command],
        check=True,
        cwd=ROOT if name == "alembic" else None,
        env=environment,
    )


def test_the_file_for_langgraph_dev_names_what_the_page_shows() -> None:
    shown = list(blocks(ROOT / "docs" / "langgraph.md"))
    (settings,) = [json.loads(it.code) for it in shown if it.language == "json"]
    path, _, name = settings["checkpointer"]["path"].partition(":")
    (code,) = [it.code for it in shown if it.code.startswith(f"# {path.removeprefix('./')}\n")]
    assert f"async def {name}():" in code
    for graph in settings["graphs"].values():
        assert re.fullmatch(r"\./\w+\.py:\w+", graph)


def test_the_storm_of_nodes_has_the_settings_of_the_page() -> None:
    shown = list(blocks(ROOT / "docs" / "opensearch.md"))
    (template,) = [json.loads(it.code) for it in shown if it.language == "json"]
    settings = {f"index.{name}": it for name, it in nodes.SETTINGS.items()}
    assert settings == {**template["template"]["settings"], "index.number_of_shards": 1}


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def broken_links(page: Path) -> list[str]:
    targets = [it for it in LINK.findall(page.read_text("utf-8")) if "://" not in it]
    return [it for it in targets if not leads_somewhere(page, it)]


def test_each_record_of_a_decision_has_a_row_and_a_status() -> None:
    index = ROOT / "docs" / "decisions" / "README.md"
    rows = re.findall(r"^\| \d+ \| \[.*\]\((.*)\) \|", index.read_text("utf-8"), re.MULTILINE)
    assert rows == [it.name for it in RECORDS]
    assert broken_links(index) == []
    for record in RECORDS:
        head = r"# \d+\. .+\n\nStatus: (accepted|replaced by)"
        assert re.match(head, record.read_text("utf-8")), record.name
        assert broken_links(record) == [], record.name


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    return file.exists() and (not anchor or anchor in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_every_table_has_a_rule_and_rows_of_one_width(page: Path) -> None:
    for table in TABLE.findall(FENCE.sub("", page.read_text("utf-8"))):
        rows = table.replace("\\|", "").splitlines()
        assert RULE.fullmatch(rows[1]), rows[0]
        assert len({re.sub(r"`[^`]*`", "", row).count("|") for row in rows}) == 1, rows[0]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    plain = (re.sub(r"[^\w -]", "", it.lower()) for it in HEADING.findall(text))
    return {it.replace(" ", "-") for it in plain}


@pytest.mark.parametrize(
    "dsn", [it for page in PAGES for it in DSN.findall(page.read_text("utf-8"))]
)
def test_every_dsn_that_is_shown_can_be_read(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.backends.postgresql import dsn as dsns
    from locus_store.backends.postgresql.dsn import OURS

    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"ssl\w+=(\w+\.\w+)", dsn):
        Path(name).touch()
    dsns.parse(dsn, ours={*OURS, "table_name"})  # which `import locus` takes


def test_the_tables_of_options_are_those_of_the_classes() -> None:
    made = runpy.run_path(str(ROOT / ".ci" / "option-tables"))
    for name in made["PAGES"]:
        page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        assert made["written"](name, page) == page, "run: python .ci/option-tables"
        assert all(row in page for row in made["rows"](name))


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text("utf-8")))
    assert {f"docs/{it.name}" for it in (ROOT / "docs").glob("*.md")} <= linked


def test_every_table_of_the_benchmarks_is_linked_and_names_its_command_and_commit() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "performance.md").read_text("utf-8")))
    tables = sorted(RESULTS.glob("*.md"))
    assert {f"../benchmarks/results/{it.name}" for it in tables} <= linked
    origin = r"^Measured by `python -m benchmarks\.\w+\.\w+.*`.* \w{7,12} .*on 20\d\d-\d\d-\d\d\.$"
    unsigned = [
        it.name for it in tables if not re.search(origin, it.read_text("utf-8"), re.MULTILINE)
    ]
    assert unsigned == []


def test_the_figures_of_the_readme_are_those_that_were_measured_last() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## Storage growth")[2]
    rows = [it for it in section.partition("\n## ")[0].splitlines() if it.startswith("|")]
    measured = (RESULTS / "growth.md").read_text("utf-8").splitlines()
    assert rows
    assert [it for it in rows if it not in measured] == []


def test_the_changelog_has_this_version() -> None:
    from locus_store import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
