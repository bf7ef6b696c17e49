"""Trials of a PostgreSQL-compatible service, on real servers from which features were taken."""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import servers
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint
from tiers import first_of

from locus_store.backends.postgresql import compatibility
from locus_store.backends.postgresql.compatibility import (
    Feature,
    Step,
    Trial,
    read_features,
    try_service,
)
from locus_store.sql import migrate
from locus_store.sql.schema import user_ids
from locus_store.sql.schema.tables import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

LEFT = """
SELECT string_agg(it, ' ' ORDER BY it) FROM (
  SELECT oid::text || relname FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace
  UNION ALL SELECT nspname FROM pg_namespace UNION ALL SELECT extname FROM pg_extension) every (it)
"""
"""Tables, indexes, views, schemas and extensions."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def tried(url: str) -> dict[str, Trial]:
    found = await try_service(url)
    assert len({it.name for it in found}) == len(found)
    return {it.name: it for it in found}


def bad(found: dict[str, Trial]) -> dict[str, str]:
    return {it.name: it.verdict for it in found.values() if it.verdict not in {"ok", "info"}}


async def test_postgresql_has_all_and_nothing_is_left(
    postgresql: servers.Server, database: str
) -> None:
    before = postgresql.value(LEFT, database=name_of(database))
    found = await tried(database)
    assert bad(found) == {compatibility._VECTORS: "warn"}
    assert found["service"].answer.startswith("PostgreSQL ")
    assert found["embeddings"].verdict == "info"
    assert postgresql.value(LEFT, database=name_of(database)) == before
    postgresql.execute('CREATE EXTENSION vector; CREATE SCHEMA "it\'s"', name_of(database))
    found = await tried(f"{database}?schema=it's&tenant=t&prefix=mine_&keep_last=3")
    assert {it.verdict for it in found.values() if it.name != "service"} == {"ok"}


async def test_a_role_without_rights_is_told_which_one_has_them(
    postgresql: servers.Server, database: str
) -> None:
    postgresql.execute("CREATE ROLE guest LOGIN")
    try:
        found = await tried(postgresql.url(name_of(database), user="guest"))
    finally:
        postgresql.execute("DROP ROLE guest")
    assert found[compatibility._TABLES].verdict == "fail"
    assert "42501" in found[compatibility._TABLES].answer
    assert "role that runs migrations" in found[compatibility._TABLES].answer
    assert found["LOCK TABLE"].answer.startswith("not tried")
    assert {found[it].verdict for it in ("JSONB", "clocks", "advisory locks")} == {"ok"}
    assert found["the tables of this release"].verdict == "fail"
    assert found["stores"].verdict == "info"
    assert found["removal of the tables"].verdict == "ok"


@pytest.mark.full
async def test_a_server_that_is_read_only_fails(database: str) -> None:
    found = await tried(f"{database}?options=-c%20default_transaction_read_only%3Don")
    assert "25006" in found[compatibility._TABLES].answer
    assert "primary" in found[compatibility._TABLES].answer
    assert found["JSONB"].verdict == "ok"


async def test_a_pooler_by_transaction_needs_its_option(
    pgbouncer: servers.PgBouncer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(database)
    vectors = [it for it in read_features() if it.name == compatibility._VECTORS]
    with monkeypatch.context() as patch:
        patch.setattr(compatibility, "read_features", lambda: vectors)
        found = await tried(pgbouncer.url(name))
    prepared = found["prepared statements beyond a transaction"]
    assert prepared.verdict == "fail"
    assert "pgbouncer=true" in prepared.answer
    found = await tried(pgbouncer.url(name, pgbouncer="true"))
    assert bad(found) == {compatibility._VECTORS: "warn"}
    assert found["prepared statements beyond a transaction"].verdict == "info"


REVOKED = {
    "gen_random_uuid()": "random UUIDs",
    "pg_advisory_xact_lock(bigint)": "advisory locks",
    "set_config(text, text, boolean)": "settings that end with the transaction",
    "pg_table_is_visible(oid)": "catalogs of PostgreSQL",
    "jsonb_path_query_first(jsonb, jsonpath, jsonb, boolean)": "JSONB",
    "string_agg(bytea, bytea)": "aggregates and windows",
    "statement_timestamp()": "clocks",
    "strpos(text, text)": "strings",
    "array_to_tsvector(text[])": "text search",
    "pg_backend_pid()": "the view pg_stat_activity",
    "pg_is_in_recovery()": "facts about the server",
}
"""Functions that a server can withhold, and the feature that needs them."""


@pytest.fixture
def owner(postgresql: servers.Server, database: str) -> Iterator[str]:
    """URL of a database for its owner, who is no superuser."""
    name = name_of(database)
    postgresql.execute(f"CREATE ROLE {name} LOGIN; ALTER DATABASE {name} OWNER TO {name}")
    yield postgresql.url(name, user=name)
    postgresql.drop_database(name)
    postgresql.execute(f"DROP ROLE {name}")


async def test_a_function_that_is_missing_is_named(postgresql: servers.Server, owner: str) -> None:
    script = "".join(f"REVOKE EXECUTE ON FUNCTION {it} FROM PUBLIC;" for it in REVOKED)
    postgresql.execute(script, name_of(owner))
    found = await tried(owner)
    assert {it for it in REVOKED.values() if found[it].verdict not in {"fail", "warn"}} == set()
    for function, feature in REVOKED.items():
        assert function.partition("(")[0] in found[feature].answer
    assert found["the tables of this release"].verdict == "fail"


@pytest.mark.full
async def test_the_owner_of_a_schema_needs_no_other_right(
    postgresql: servers.Server, database: str
) -> None:
    name = name_of(database)
    postgresql.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA own AUTHORIZATION {name}", name)
    try:
        found = await tried(postgresql.url(name, user=name, schema="own"))
        left = postgresql.value(
            "SELECT count(*) FROM pg_class WHERE relowner::regrole::text = $1", name, database=name
        )
    finally:
        postgresql.drop_database(name)
        postgresql.execute(f"DROP ROLE {name}")
    assert bad(found) == {"CREATE SCHEMA": "warn", compatibility._VECTORS: "warn"}
    assert left == 0


TAKEN = """
SET LOCAL allow_system_table_mods = on;
DELETE FROM pg_opclass WHERE opcname = 'jsonb_path_ops';
ALTER FUNCTION pg_advisory_xact_lock(bigint) RENAME TO lock_of_before;
CREATE FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql AS '';
"""
"""An index that is missing, and a lock that excludes nobody, as on CockroachDB before 26.2."""


async def test_a_lock_that_does_nothing_is_found_out(
    postgresql: servers.Server, database: str
) -> None:
    postgresql.execute(TAKEN, name_of(database))
    found = await tried(database)
    assert found["GIN indexes on JSONB"].verdict == "fail"
    assert found["advisory locks"].verdict == "fail"
    assert "the answer is false" in found["advisory locks"].answer


@pytest.mark.full
async def test_another_encoding_is_found_out(postgresql: servers.Server) -> None:
    postgresql.execute(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' STRATEGY file_copy"
    )
    try:
        found = await tried(postgresql.url("latin"))
    finally:
        postgresql.drop_database("latin")
    assert bad(found).keys() >= {"the encoding UTF8"}


IGNORED = (
    (r"^LOCK TABLE .*", "SELECT 1", "text search"),
    (r"READ COMMITTED", "REPEATABLE READ", "READ COMMITTED"),
    (r"REPEATABLE READ", "READ COMMITTED", "REPEATABLE READ"),
    (r" SKIP LOCKED", "", "row locks and SKIP LOCKED"),
    (r" FOR UPDATE OF i$", "", "row locks and SKIP LOCKED"),
    (r" FOR UPDATE$", "", "NOWAIT"),
    (r"'lock_timeout', '100ms'", "'lock_timeout', '0'", "lock_timeout"),
    (r"'statement_timeout', '100ms'", "'statement_timeout', '0'", "statement_timeout"),
    (r"'123ms', true", "'123ms', false", "settings that end with the transaction"),
    (r"^ROLLBACK$", "COMMIT", "definitions within a transaction"),
    (r"xmax = 0", "xmax >= 0", "the system column xmax"),
    (r"WHERE i.name < 'b'", "", "ON CONFLICT"),
    (r"statement_timestamp", "transaction_timestamp", "clocks"),
    (r' COLLATE "C"', ' COLLATE "und-x-icu"', "strings"),
)
"""Statements that a service may accept without their effect: the change, and the feature that
finds it."""


@pytest.mark.parametrize(("pattern", "instead", "feature"), first_of(*IGNORED))
async def test_a_feature_that_is_accepted_without_effect_is_missing(
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    instead: str,
    feature: str,
) -> None:
    fetch = asyncpg.Connection.fetch

    async def otherwise(self: Any, text: str, *values: Any, **options: Any) -> Any:
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
        return await fetch(self, text, *values, **options)

    features = [it for it in read_features() if it.name in {compatibility._TABLES, feature}]
    monkeypatch.setattr(compatibility, "read_features", lambda: features)
    monkeypatch.setattr(compatibility, "_WORKS", {})
    assert bad(await tried(database)) == {}
    monkeypatch.setattr(compatibility, "SECONDS", 5.0)
    monkeypatch.setattr(asyncpg.Connection, "fetch", otherwise)
    assert (await tried(database))[feature].verdict in {"fail", "warn"}


async def test_a_run_that_is_interrupted_leaves_nothing_and_one_that_was_killed_is_named(
    postgresql: servers.Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(database)
    before = postgresql.value(LEFT, database=name)
    reported: list[str] = []

    def report() -> None:
        reported.append("")
        if len(reported) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await try_service(database, report)
    assert postgresql.value(LEFT, database=name) == before
    postgresql.execute('CREATE TABLE "locus_probe_1234_it"";--" ()', name)
    postgresql.execute("CREATE TABLE locusxprobex ()", name)
    monkeypatch.setattr(compatibility, "read_features", lambda: read_features()[:1])
    found = await tried(database)
    assert found["removal of the tables"].verdict == "warn"
    assert found["removal of the tables"].answer.endswith(
        ': DROP TABLE public."locus_probe_1234_it"";--"'
    )


@pytest.mark.full
async def test_a_trial_without_an_answer_ends(
    postgresql: servers.Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the trial that waits has little time, so that a slow machine does not matter."""
    waits = Feature("waits", "", True, (Step("SELECT count(*) FROM public.held", False, ""),))
    tables = [it for it in read_features() if it.name == compatibility._TABLES]
    limits = iter((3.0, compatibility.SECONDS))
    monkeypatch.setattr(compatibility, "read_features", lambda: [*tables, waits])
    monkeypatch.setattr(compatibility, "_WORKS", {})

    def report() -> None:
        monkeypatch.setattr(compatibility, "SECONDS", next(limits))

    holder = await asyncpg.connect(database)
    await holder.execute("CREATE TABLE held ()")
    async with holder.transaction():
        await holder.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        found = {it.name: it for it in await try_service(database, report)}
        waiting = "wait_event_type = 'Lock' AND datname = current_database()"
        query = f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {waiting}"
        servers.wait_until(
            lambda: postgresql.value(query, database=name_of(database)), "the server to end it"
        )
    await holder.close()
    assert found["waits"].answer == "no answer within 3 s"
    assert found["removal of the tables"].answer == "works"


async def test_a_schema_that_is_missing_is_not_created(
    postgresql: servers.Server, database: str
) -> None:
    before = postgresql.value(LEFT, database=name_of(database))
    [trial] = await try_service(f"{database}?schema=absent")
    assert trial.verdict == "fail"
    assert "no schema 'absent'" in trial.answer
    assert postgresql.value(LEFT, database=name_of(database)) == before


async def test_a_service_that_cannot_be_reached_is_one_failure() -> None:
    [trial] = await try_service(f"postgresql://u@127.0.0.1:{servers.free_port()}/d")
    assert (trial.name, trial.verdict) == ("service", "fail")
    assert "refused" in trial.answer


# --- the list of features is complete

ROOT = Path(__file__).parents[3]
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|LOCK|DROP|FROM|WHERE|CASE|ORDER)\b")
NOT_TRIED = {
    "extension",  # CREATE EXTENSION: where definitions are not undone, it would stay
    *("authorization", "database", "usage"),  # of messages
    # of roles, which would stay, too, and of the advice to create one
    *("inherit", "login", "nologin", "password"),
    # of the rights of a role that is given a tenant
    *("bypassrls", "createrole", "replication", "superuser", "recursive", "quote_literal"),
    *("has_any_column_privilege", "has_schema_privilege"),
    *("row_security_active", "always"),  # below row security only
}


def strings(source: str) -> Iterator[str]:
    """Yield the contents of the strings that are no docstrings.

    Not by ``ast``, which may fail after greenlets (Python 3.11).
    """
    before, parts, depth = tokenize.NEWLINE, list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        depth += {"FSTRING_START": 1, "FSTRING_END": -1}.get(kind, 0)  # since Python 3.12
        if kind == "FSTRING_MIDDLE":
            parts.append(token.string)
        elif kind == "FSTRING_END" and depth == 0:
            yield "{}".join(parts)
            parts.clear()
        elif kind == "STRING" and before not in STARTS:
            yield token.string.lstrip("fr").strip('"').strip("'")
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.type


STARTS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
"""Tokens before a docstring."""


def texts() -> Iterator[str]:
    """Yield the SQL in the modules for PostgreSQL, the functions of SQLAlchemy's, and the DDL."""
    package = ROOT / "locus_store"
    paths = [*package.glob("backends/postgresql/*.py"), *package.glob("sql/**/*.py")]
    for path in paths:
        if path.stem != "compatibility":
            source = path.read_text("utf-8")
            texts = (it for it in strings(source) if r"\b" not in it)  # of no regular expression
            yield from filter(SQL.search, texts)
            yield from (f"{it}(" for it in re.findall(r"\bsa\.func\.(\w+)", source))
            yield from re.findall(r'\.op\("([^"]+)"', source)
    yield migrate.render_upgrade("postgresql")
    yield user_ids.render_sql("postgresql", "bigint")


PHRASES = re.compile(
    r"\b(?:IS (?:NOT )?DISTINCT FROM|FOR (?:NO KEY |KEY )?(?:UPDATE|SHARE)|SKIP LOCKED|DISTINCT ON"
    r"|DO (?:NOTHING|UPDATE)|AS (?:NOT )?MATERIALIZED|WITH ORDINALITY|NULLS (?:FIRST|LAST)"
    r"|IN [A-Z ]+ MODE|(?:CROSS|LEFT|LEFT OUTER|FULL|FULL OUTER) JOIN)\b"
)
"""Features whose words stand in others, too."""


def words(text: str) -> set[str]:
    """Return the keywords, phrases of them, functions, types of casts, and operators of SQL."""
    text = re.sub(r"--.*|'[^']*'|\"[^\"]*\"|[{][^}]*[}]", " ", text)
    keywords = re.findall(r"\b[A-Z][A-Z]+\b", text)
    functions = re.findall(r"\b(xmax|[a-z][a-z_]+(?=\())", text)
    types = re.findall(r"(?:::|USING (?=gin))\s*([a-z_]+)", text)
    operators = re.findall(r"(?<![-+*/<>=~!@#%^&|?])[-+*/<>=~!@#%^&|?]+", text)
    phrases = PHRASES.findall(" ".join(text.split()))
    return {it.lower() for it in (*keywords, *phrases, *functions, *types, *operators)}


@cache
def words_used() -> set[str]:
    return set().union(*map(words, texts()))


def words_tried(without: str = "") -> set[str]:
    steps = [step for it in read_features() if it.name != without for step in it.steps]
    text = "\n".join(it.text for it in steps)
    return words(text) | set(re.findall(r"\b[a-z_]+\b", text))


def test_the_features_have_every_word_of_the_statements() -> None:
    found = words_used()
    assert {"skip", "jsonb_path_query_first", "jsonb", "@>", "gin"} <= found
    assert found - words_tried() == NOT_TRIED


@pytest.mark.parametrize(
    "feature",
    [
        "advisory locks",
        "row locks and SKIP LOCKED",
        "clocks",
        "JSONB",
        "text search",
        "random UUIDs",
    ],
)
def test_a_feature_that_is_left_out_is_missed(feature: str) -> None:
    assert words_used() - words_tried(without=feature) > NOT_TRIED


# --- Citus

DISTRIBUTION = {
    "audit": {"entry"},
    "checkpoints": {"line"},
    "lines": set(),
    "logs": {"thread", "namespace"},
    "messages": {"thread", "namespace"},
    "quotas": {"tenant"},
    "seals": {"tenant", "seal"},
    "segments": {"line", "last"},
    "settings": {"name"},
    "store": set(),
    "threads": set(),
    "turns": {"tenant", "thread_id"},
    "writes": {"line", "checkpoint_id", "task_id", "idx"},
}
"""The columns that every primary key and unique constraint of a table has."""


def test_three_tables_have_no_column_that_citus_could_distribute() -> None:
    found = {}
    for table in METADATA.sorted_tables:
        keys = [
            {column.name for column in it.columns}
            for it in table.constraints
            if isinstance(it, PrimaryKeyConstraint | UniqueConstraint)
        ]
        assert not any(it.unique for it in table.indexes)
        assert not table.foreign_keys
        found[table.name.removeprefix("locus_")] = set.intersection(*keys)
    assert found == DISTRIBUTION
