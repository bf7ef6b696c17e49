from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from lazily import TESTS_RUN, Later
from properties import given
from sqlalchemy.dialects import postgresql

from locus_store import blocking
from locus_store.backends.postgresql.columns import dump_valueb
from locus_store.errors import InvalidArgumentError
from locus_store.sql.columns import dialect_columns, types
from locus_store.sql.columns.dialect_columns import dump_value, escape_json, escape_text, load_value
from locus_store.sql.migrate import ensure
from locus_store.sql.schema.tables import (
    DEFAULT_PREFIX,
    METADATA,
    Tables,
    compute_max_prefix,
    make_tables,
    parse_prefix,
)
from locus_store.values.canonical import canonicalize
from locus_store.values.times import from_microseconds, to_microseconds

if TESTS_RUN:
    from sqlalchemy.dialects import oracle
    from sqlalchemy.orm import Session

    from locus_store.sql.schema import models

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = "p" * compute_max_prefix("postgresql")
POSTGRESQL = postgresql.dialect()
if TESTS_RUN:
    ORACLE = oracle.dialect()


@pytest.fixture
def connection() -> Any:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as opened:
        ensure(opened)
        yield opened
    engine.dispose()


def names_of(ours: Tables) -> set[str]:
    found = set(ours.names)
    for table in ours.metadata.tables.values():
        found |= {str(item.name) for item in (*table.indexes, *table.constraints) if item.name}
    return found


def keys_of(table: sa.Table) -> list[list[sa.Column[Any]]]:
    unique = [list(c.columns) for c in table.constraints if hasattr(c, "columns")]
    return unique + [list(index.columns) for index in table.indexes if not index.info]


def key_bytes(column: sa.Column[Any]) -> int:
    if isinstance(column.type, types.Key):
        return 4 * (column.type.length + 1) + 3
    return 4 * (getattr(column.type, "length", None) or 0) or 22


# --- names


def test_the_default_tables_are_those_of_the_orm_classes() -> None:
    assert make_tables().metadata is METADATA
    assert make_tables().threads is METADATA.tables["locus_threads"]


def test_every_name_begins_with_the_prefix_so_that_two_live_in_one_database() -> None:
    assert all(name.startswith("mine_") for name in names_of(make_tables("mine_")))


def test_every_name_fits_postgresql_with_the_longest_prefix() -> None:
    names = names_of(make_tables(LONGEST))
    assert max(len(name.encode()) for name in names) == 63
    assert len(names) == len(names_of(make_tables()))


def test_a_table_name_of_the_sdk_means_a_prefix() -> None:
    for name, prefix in (
        ("customer_support_agent_state", "customer_support_agent_state_"),
        ("MyTable", "MyTable_"),
        ("app_checkpoints", "app_"),
        ("app_store", "app_"),
        ("a" * 51 + "_checkpoints", "a" * 51 + "_"),
    ):
        assert parse_prefix(name, None, "postgresql") == prefix


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
@pytest.mark.parametrize("name", ["", "_", "9x", "a-b", 'a"; DROP', "é", "a" * 300, 7])
def test_a_table_name_that_names_no_table_is_refused_by_its_own_name(
    name: Any, dialect: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^table_name="):
        parse_prefix(name, None, dialect)


@pytest.mark.parametrize(("dialect", "longest"), [("postgresql", 51), ("oracle", 116)])
def test_a_table_name_may_be_as_long_as_the_database_allows(dialect: str, longest: int) -> None:
    assert parse_prefix("a" * longest, None, dialect) == "a" * longest + "_"
    with pytest.raises(InvalidArgumentError, match=f"{longest} characters .*{dialect}"):
        parse_prefix("a" * (longest + 1), None, dialect)


def test_another_prefix_leaves_the_default_names_alone() -> None:
    make_tables("other_", "there")
    assert all(name.startswith(DEFAULT_PREFIX) for name in names_of(make_tables()))


def test_a_database_schema_qualifies_every_table() -> None:
    assert {table.schema for table in make_tables("x_", "app").metadata.tables.values()} == {"app"}


@pytest.mark.parametrize("prefix", ["", "9x", "a-b", "a b", 'a"', "é_", "p" * 245])
def test_a_prefix_that_cannot_begin_a_table_name_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgumentError, match="prefix"):
        make_tables(prefix)


@pytest.mark.parametrize(("limit", "dialect"), [(6398, "oracle"), (2704, "postgresql")])
def test_every_index_key_fits_at_the_longest_ids(limit: int, dialect: str) -> None:
    for table in make_tables().metadata.tables.values():
        for key in keys_of(table):
            size = sum(key_bytes(column) for column in key)
            # The index on (tenant, user_id, ...) and all others alike.
            assert size <= limit, (table.name, [column.name for column in key], size)


# --- keys


@given(st.text())
def test_a_key_of_oracle_is_never_empty_and_comes_back(value: str) -> None:
    columns = dialect_columns.get_columns(ORACLE)
    encoded = columns.encode_key(value)
    assert encoded
    assert encoded.removeprefix(columns.key_mark) == value


@given(st.text(), st.text())
def test_two_keys_never_become_one(left: str, right: str) -> None:
    encode = dialect_columns.get_columns(ORACLE).encode_key
    assert (encode(left) == encode(right)) == (left == right)


def test_an_empty_key_is_found_again(connection: sa.Connection) -> None:
    lines = make_tables().lines
    for namespace in ("", "/", "//", "a"):
        row = {"tenant": "default", "thread_id": "t", "namespace": namespace}
        connection.execute(lines.insert().values(row))
    found = connection.execute(sa.select(lines.c.namespace).where(lines.c.namespace == ""))
    assert found.scalars().all() == [""]
    assert connection.execute(sa.select(lines.c.namespace)).scalars().all() == ["", "/", "//", "a"]


LAZY = """
import sys
sys.modules.update(dict.fromkeys(["asyncpg", "oracledb", "aiosqlite"]))  # as if not installed
from importlib import import_module
import sqlalchemy as sa
from locus_store.sql.schema.tables import METADATA
assert not [it for it in sys.modules if it.startswith("locus_store.backends.")]
for name in sys.argv[1:]:
    dialect = import_module(f"sqlalchemy.dialects.{name}").dialect()
    print(sa.schema.CreateTable(METADATA.tables["locus_store"]).compile(dialect=dialect))
"""


def test_a_database_has_its_own_types_though_nothing_imported_its_backend() -> None:
    command = [sys.executable, "-c", LAZY, "sqlite", "postgresql", "oracle"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"(?:created_at|value) (.*),", done.stdout)
    assert found == [
        *("BIGINT NOT NULL", "TEXT"),
        *("TIMESTAMP WITH TIME ZONE NOT NULL", "JSONB"),
        *("TIMESTAMP WITH TIME ZONE NOT NULL", "JSON"),
    ]


def test_a_statement_that_is_only_shown_needs_no_database() -> None:
    assert "julianday" in str(sa.select(types.make_clock()))


def test_a_pattern_sees_the_stored_text(connection: sa.Connection) -> None:
    lines = make_tables().lines
    row = {"tenant": "default", "thread_id": "/x", "namespace": ""}
    connection.execute(lines.insert().values(row))
    count = sa.select(sa.func.count()).select_from(lines)
    assert connection.scalar(count.where(lines.c.thread_id.like("/%"))) == 1


def test_keys_compare_byte_for_byte_on_postgresql() -> None:
    assert 'COLLATE "C"' in types.Key(10).compile(dialect=POSTGRESQL)


# --- JSON

json_text = st.text(st.characters(exclude_categories=["Cs"]))
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | json_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(json_text, json_value, max_size=4))
def test_a_json_object_comes_back_whatever_characters_it_holds(value: dict[str, Any]) -> None:
    assert dialect_columns.load_json(dump_value(value)) == value
    escaped = escape_json(value)
    assert "\x00" not in repr(escaped)
    assert dialect_columns.load_json(escaped) == value


@given(json_text, json_text)
def test_escaping_keeps_order_so_that_ranges_may_be_asked_for(left: str, right: str) -> None:
    escaped = escape_text(left), escape_text(right)
    assert (escaped[0] < escaped[1]) == (left < right)


def test_an_empty_object_is_null_in_the_table_and_read_as_empty(
    connection: sa.Connection,
) -> None:
    threads = make_tables().threads
    row = {"tenant": "default", "thread_id": "t", "metadata": {}}
    connection.execute(threads.insert().values(row))
    assert connection.scalar(sa.select(threads.c.metadata)) == {}
    assert connection.scalar(sa.text("SELECT metadata IS NULL FROM locus_threads")) == 1


def test_metadata_is_stored_as_json_that_sql_can_ask(connection: sa.Connection) -> None:
    threads = make_tables().threads
    row = {"tenant": "default", "thread_id": "t", "metadata": {"b": 1, "a": {"x": "é\x00"}}}
    connection.execute(threads.insert().values(row))
    assert connection.scalar(sa.select(threads.c.metadata)) == row["metadata"]
    assert (
        connection.scalar(sa.text("SELECT json_extract(metadata, '$.b') FROM locus_threads")) == 1
    )


# --- time


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])))
def test_an_instant_keeps_its_microsecond(moment: datetime) -> None:
    assert from_microseconds(to_microseconds(moment)) == moment


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        to_microseconds(datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_clock_is_the_servers_and_in_utc(connection: sa.Connection) -> None:
    here, there = datetime.now(UTC), connection.scalar(sa.select(types.make_clock()))
    assert there.tzinfo is UTC
    assert abs(there - here) < timedelta(minutes=1)


def test_seconds_are_added_on_the_server(connection: sa.Connection) -> None:
    asked = sa.select(
        types.make_cutoff(90), types.make_clock(), types.make_expiry(0.25), types.Minute()
    )
    earlier, now, later, minute = connection.execute(asked).one()
    assert now - earlier == timedelta(seconds=90)
    assert later - now == timedelta(milliseconds=250)
    assert minute == now.replace(second=0, microsecond=0)


def test_the_seconds_may_come_from_a_column(connection: sa.Connection) -> None:
    asked = sa.select(types.make_clock(), types.make_expiry(sa.literal(2) * 30))
    now, later = connection.execute(asked).one()
    assert later - now == timedelta(minutes=1)


def test_a_statement_with_the_clock_is_compiled_once(connection: sa.Connection) -> None:
    keys = {sa.select(types.make_expiry(n))._generate_cache_key().key for n in (1, 2)}
    assert len(keys) == 1
    assert connection.scalar(sa.select(types.make_expiry(1) < types.make_expiry(2)))


@pytest.mark.parametrize(
    ("dialect", "words"),
    [(POSTGRESQL, "statement_timestamp()"), (Later(lambda: ORACLE), "SYSTIMESTAMP")],
)
def test_the_clock_is_spelt_for_every_dialect(dialect: Any, words: str) -> None:
    for element in (types.make_clock(), types.make_expiry(5), types.make_cutoff(5)):
        assert words in str(element.compile(dialect=dialect))


# --- rows


def test_a_lines_key_is_never_used_again(connection: sa.Connection) -> None:
    lines = make_tables().lines
    row = {"tenant": "default", "thread_id": "t", "namespace": ""}
    first = connection.execute(lines.insert().values(row)).inserted_primary_key
    connection.execute(lines.delete())
    again = connection.execute(lines.insert().values(row)).inserted_primary_key
    assert first is not None
    assert again is not None
    assert again[0] > first[0]


def test_no_bytes_are_null_in_the_table_and_read_as_no_bytes(connection: sa.Connection) -> None:
    writes = make_tables().writes
    row = {"line": 1, "checkpoint_id": "c", "task_id": "t", "idx": 0, "channel": "x"}
    connection.execute(writes.insert().values(**row, payload=b""))
    assert connection.scalar(sa.select(writes.c.payload)) == b""


@given(json_value | st.floats(allow_nan=False, allow_infinity=False))
def test_any_json_value_comes_back_with_its_type(value: Any) -> None:
    value = canonicalize(value)
    for dump in (dump_value, dump_valueb):
        assert repr(canonicalize(load_value(dump(value).encode()))) == repr(value)


def test_null_is_a_value(connection: sa.Connection) -> None:
    store = make_tables().store
    row = {"tenant": "default", "namespace": "", "key": "k", "value": None}
    connection.execute(store.insert().values(row))
    assert connection.execute(sa.select(store.c.value)).one() == (None,)
    assert connection.exec_driver_sql("SELECT value FROM locus_store").scalar() == "null"


@given(json_text, json_text)
def test_a_path_comes_back_and_keeps_its_order(left: str, right: str) -> None:
    kind = types.Path(300)
    encoded = [kind.process_bind_param(f"x{it}", POSTGRESQL) for it in (left, right)]
    assert "\0" not in "".join(encoded)
    assert [kind.process_result_value(it, POSTGRESQL) for it in encoded] == [
        f"x{left}",
        f"x{right}",
    ]
    assert (encoded[0] < encoded[1]) == (left < right)


# --- the view


def fill(connection: sa.Connection, thread_id: str, **thread: Any) -> None:
    ours = make_tables()
    owner = {"tenant": "default", "thread_id": thread_id}
    connection.execute(ours.threads.insert().values(**owner, user_id="/u", **thread))
    for namespace in ("", "inner"):
        row = {**owner, "namespace": namespace, "head": 2, "last_sequence": 2}
        line = connection.execute(ours.lines.insert().values(row)).inserted_primary_key
        assert line is not None
        for sequence in (1, 2):
            row = {
                "line": line[0],
                "sequence": sequence,
                "chain": 1,
                "checkpoint_id": f"{namespace}{sequence}",
                "digest": b"d" * 16,
                "payload": b"p",
                "metadata": {"step": sequence},
                "labels": {"agent_id": "a1"},
            }
            connection.execute(ours.checkpoints.insert().values(row))


def test_the_view_shows_the_root_head_of_every_live_thread(connection: sa.Connection) -> None:
    fill(connection, "/slash")
    fill(connection, "gone", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    fill(connection, "lives", expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    rows = connection.execute(sa.text("SELECT * FROM locus_heads ORDER BY 2")).mappings().all()
    assert [row["thread_id"] for row in rows] == ["/slash", "lives"]
    assert list(rows[0]) == [
        "tenant",
        "thread_id",
        "checkpoint_id",
        "agent_id",
        "user_id",
        "created_at",
        "updated_at",
        "metadata",
        "text",
    ]
    assert (rows[0]["checkpoint_id"], rows[0]["agent_id"], rows[0]["user_id"]) == ("2", "a1", "/u")
    assert rows[0]["metadata"] == '{"step":2}'


def test_the_view_shows_times_that_people_read(connection: sa.Connection) -> None:
    fill(connection, "t")
    shown = connection.scalar(sa.text("SELECT updated_at FROM locus_heads"))
    stored = connection.scalar(sa.select(make_tables().lines.c.updated_at).limit(1))
    assert datetime.fromisoformat(shown) == stored


def test_the_orm_classes_read_what_was_saved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orm.db"
    with blocking.open_checkpointer(url, state_type=dict) as checkpointer:
        checkpointer.save({"n": 1, "user_id": "alex"}, "t", "v1", {"stage": "asked"})
        checkpointer.save({"n": 2, "user_id": "alex"}, "t", "v2", {"stage": "booked"})
    engine = sa.create_engine(url)
    with Session(engine) as session:
        (thread,) = session.scalars(sa.select(models.ThreadRow))
        assert (thread.tenant, thread.thread_id) == ("default", "t")
        wanted = sa.select(models.CheckpointRow).order_by(models.CheckpointRow.sequence)
        found = [(it.checkpoint_id, it.metadata_["stage"]) for it in session.scalars(wanted)]
        assert found == [("v1", "asked"), ("v2", "booked")]
        mapped = {it.local_table.name for it in models.Base.registry.mappers}
        assert mapped == {it.name for it in METADATA.sorted_tables}
    engine.dispose()
