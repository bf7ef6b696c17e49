"""Operators and functions of other roles in the search path, which no statement of ours calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle_methods as methods
import pytest

import locus_store
from locus_store import (
    PostgreSQLBackend,
    PostgreSQLCheckpointSaver,
    PostgreSQLMessageLog,
    PostgreSQLStore,
)
from locus_store.backends.postgresql.compatibility import try_service
from locus_store.errors import LocusStoreError, NotFoundError
from locus_store.sql import migrate
from locus_store.sql.schema import user_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    import servers

pytestmark = pytest.mark.anyio

SOURCES = Path(locus_store.__file__).parent
WORD = re.compile(r"\b([a-z][a-z0-9_]+)\b")

# Every pair of types for which PostgreSQL itself has no such operator, as its own are preferred.
OPERATORS = """
CREATE SEQUENCE calls;
GRANT USAGE ON calls TO public;
DO $do$
DECLARE
  one text; other text; name text; types text[] := ARRAY['text', 'varchar', 'name', '"char"',
    'int2', 'int4', 'int8', 'numeric', 'float8', 'bool', 'bytea', 'oid', 'regclass', 'timestamptz',
    'timestamp', 'interval', 'jsonb', 'jsonpath', 'text[]', 'varchar[]', 'int8[]'];
  body text := $body$ BEGIN PERFORM pg_catalog.nextval('public.calls');
    RAISE EXCEPTION 'a shadow was called'; END $body$;
BEGIN
  FOREACH one IN ARRAY types LOOP FOREACH other IN ARRAY types LOOP
    EXECUTE format('CREATE FUNCTION shadow(%s, %s) RETURNS bool LANGUAGE plpgsql AS %L',
      one, other, body);
    FOREACH name IN ARRAY ARRAY['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '||', '~~', '~',
        '@>', '@@', '->', '->>', '#>>'] LOOP
      IF NOT EXISTS (SELECT FROM pg_operator WHERE oprname = name
          AND oprleft = one::regtype AND oprright = other::regtype) THEN
        EXECUTE format('CREATE OPERATOR %s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = shadow)',
          name, one, other);
      END IF;
    END LOOP;
  END LOOP; END LOOP;
END $do$
"""

# Every function of these names, with each argument of PostgreSQL's replaced by what would be
# converted to it, and without the arguments that have a default.
FUNCTIONS = """
SET search_path TO pg_catalog;
DO $do$
DECLARE
  it record; body text := $body$ BEGIN PERFORM pg_catalog.nextval('public.calls');
    RAISE EXCEPTION 'a shadow was called'; END $body$;
BEGIN
  FOR it IN
    WITH RECURSIVE given AS (
      SELECT p.oid, p.proname, p.pronargs - left_out AS args, proargtypes::oid[] AS types
      FROM pg_proc p, generate_series(0, p.pronargdefaults) left_out
      WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY (:names)
        AND prokind IN ('f', 'a') AND pronargs - left_out BETWEEN 1 AND 4),
    like_it (type, other) AS (VALUES
      ('text', 'varchar'), ('text', 'name'), ('name', 'text'), ('name', 'varchar'),
      ('regclass', 'oid'), ('regclass', 'text'), ('int4', 'int8'), ('int8', 'int4'),
      ('float8', 'int8'), ('float8', 'numeric'), ('numeric', 'int8'), ('"char"', 'text'),
      ('any', 'text'), ('any', 'int4'), ('any', 'int8'), ('any', 'bytea'), ('any', 'timestamptz'),
      ('anynonarray', 'text'), ('anynonarray', 'int8'), ('anynonarray', 'bytea'),
      ('anynonarray', 'record'), ('anynonarray', 'anyelement'), ('anyelement', 'text'),
      ('anyelement', 'int8'), ('anyelement', 'record'), ('anyarray', 'text[]'),
      ('anyarray', 'int8[]'), ('anyarray', 'int4[]'), ('anyarray', 'bytea[]')),
    choice (oid, proname, args, types, at, chosen) AS (
      SELECT oid, proname, args, types, 0, '{}'::text[] FROM given
      UNION ALL
      SELECT c.oid, c.proname, c.args, c.types, c.at + 1, c.chosen || o.other
      FROM choice c CROSS JOIN LATERAL (
        SELECT c.types[c.at]::regtype::text AS other
        UNION SELECT l.other FROM like_it l
        WHERE l.type = 'any' AND c.types[c.at] = '"any"'::regtype
        UNION SELECT l.other FROM like_it l
        WHERE l.type <> 'any' AND l.type::regtype = c.types[c.at]) o
      WHERE c.at < c.args)
    SELECT DISTINCT proname, array_to_string(chosen, ', ') AS chosen FROM choice
    WHERE at = args AND NOT '"any"' = ANY (chosen) AND NOT 'internal' = ANY (chosen)
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS %L',
        it.proname, it.chosen, body);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
  END LOOP;
END $do$
"""


def names_used(server: servers.Server) -> list[str]:
    """The names of PostgreSQL's functions in our code; also of other things that have such."""
    names = {it for (it,) in server.fetch("SELECT DISTINCT proname FROM pg_proc")}
    folders = ("sql", "backends/postgresql")
    files = [file for it in folders for file in (SOURCES / it).rglob("*.py")]
    files += [*(SOURCES.parent / "alembic").rglob("*.py"), *SOURCES.rglob("*.sql")]
    return sorted(names & {it for file in files for it in WORD.findall(file.read_text("utf-8"))})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shadowed(postgresql: servers.Server) -> Iterator[Any]:
    """A database whose every schema has operators and functions of another role."""
    name = postgresql.new_database()
    quoted = ", ".join(f"'{it}'" for it in names_used(postgresql))
    postgresql.execute(OPERATORS, name)
    postgresql.execute(FUNCTIONS.replace(":names", f"ARRAY[{quoted}]::name[]"), name)
    yield name
    postgresql.drop_database(name)


def is_called(postgresql: servers.Server, name: str) -> bool:
    return bool(postgresql.value("SELECT is_called FROM calls", database=name))


def test_the_shadows_are_in_the_way(postgresql: servers.Server, shadowed: str) -> None:
    count = "SELECT pg_catalog.count(*) FROM pg_{} WHERE {}namespace = 'public'::regnamespace"
    assert postgresql.value(count.format("operator", "opr"), database=shadowed) > 5000
    assert postgresql.value(count.format("proc", "pro"), database=shadowed) > 700
    for told in ("'a'::varchar = 'b'::varchar", "length('a'::varchar)", "unnest('{a}'::text[])"):
        with pytest.raises(Exception, match="shadow was called"):
            postgresql.value(f"SELECT {told}", database=shadowed)
    postgresql.execute("ALTER SEQUENCE calls RESTART", shadowed)


async def test_no_call_of_ours_runs_what_another_role_made(
    postgresql: servers.Server, shadowed: str
) -> None:
    """Each public method, on the tables that a first open makes between them."""
    backend = PostgreSQLBackend(postgresql.url(shadowed))
    has_vectors = bool(
        postgresql.value(
            "SELECT pg_catalog.count(*) FROM pg_available_extensions WHERE name::text = 'vector'"
        )
    )
    store = PostgreSQLStore(backend=backend, **({"dimension": 3} if has_vectors else {}))
    saver = PostgreSQLCheckpointSaver(postgresql.url(shadowed))
    log = PostgreSQLMessageLog(backend=backend)
    failures: dict[str, list[str]] = {}
    for number, (name, call) in enumerate(methods.SCENARIOS.items()):
        if name.endswith("_on"):
            continue
        tenant = f"t{number}"
        opened: Any = methods.Opened(
            *(it.for_tenant(tenant) for it in (backend, saver, store, log))
        )
        try:
            if has_vectors or not name.startswith("store"):
                await methods.prepare(opened)
                await call(opened)
        except NotFoundError:
            pass
        except LocusStoreError as exc:
            failures.setdefault(str(exc.__cause__ or exc), []).append(name)
    await saver.close()
    await store.close()
    await backend.close()
    assert failures == {}
    assert not is_called(postgresql, shadowed)


async def test_no_trial_of_a_service_runs_what_another_role_made(
    postgresql: servers.Server, shadowed: str
) -> None:
    trials = await try_service(postgresql.url(shadowed))
    # Alone, this test finds no extension for vectors, which is a warning.
    assert {it.verdict for it in trials if it.is_required} <= {"ok", "info"}
    assert not is_called(postgresql, shadowed)


@pytest.mark.usefixtures("later_release")
def test_no_migration_of_ours_runs_what_another_role_made(
    postgresql: servers.Server, shadowed: str
) -> None:
    url = postgresql.url(shadowed)
    migrate.upgrade(url, prefix="mine_")
    assert user_ids.set_user_id_type(url, "bigint", prefix="mine_")
    migrate.downgrade(url, "0001", prefix="mine_")
    migrate.upgrade(url, prefix="mine_")
    migrate.drop(url, prefix="mine_")
    migrate.upgrade(url, prefix="mine_", schema="apart")
    assert not is_called(postgresql, shadowed)
