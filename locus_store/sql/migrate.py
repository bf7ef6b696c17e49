"""Alembic on a connection: create, upgrade, verify.

Alembic itself is imported only where something is migrated, so that opening a database that is
in order costs one SELECT.
"""

from __future__ import annotations

import io
import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError

from locus_store.errors import InvalidArgumentError, SchemaError
from locus_store.runtime import observe
from locus_store.sql.schema.definition import load_definition, load_definition_of, make_place, quote
from locus_store.sql.schema.migrations import (
    Target,
    get_dialect_name,
    get_reason,
    lock,
    process,
    refuse_transaction,
    run_on,
)
from locus_store.sql.schema.status import (
    Settings,
    Status,
    is_usable,
    make_missing_status,
    read_settings,
    read_status,
)
from locus_store.sql.schema.tables import (
    DEFAULT_PREFIX,
    PARTITIONED,
    Tables,
    check_prefix,
    make_tables,
)

if TYPE_CHECKING:
    from alembic.config import Config

AutoMigrate = bool | Literal["upgrade"]

DEFAULT_URL: Final = "sqlite:///locus_checkpoints.db"
"""The URL that ``sqlite_checkpointer()`` opens."""

_WHEEL = Path(__file__).parents[1] / "_alembic"
SCRIPTS: Final = _WHEEL if _WHEEL.is_dir() else Path(__file__).parents[2] / "alembic"
"""The migrations: what the wheel carries, else the checkout's."""


def load() -> None:
    """Import the modules of a migration; run it in a thread, as it takes long."""
    for name in ("command", "config", "script", "runtime.migration"):
        import_module(f"alembic.{name}")


def ensure(
    connection: Connection,
    *,
    auto_migrate: AutoMigrate = True,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> Settings:
    """Verify the schema, and create it if there is none.

    Args:
        connection: Without a transaction begun; it has none afterwards either.
        auto_migrate: ``True`` creates and never upgrades; ``"upgrade"`` does both; ``False``
            only verifies.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.

    Raises:
        SchemaError: behind, too new, foreign, damaged, or missing with ``auto_migrate=False``.
    """
    if not isinstance(connection, Connection):
        raise InvalidArgumentError(
            f"ensure() needs a connection, not {type(connection).__name__}; of an asynchronous"
            " engine: await connection.run_sync(migrate.ensure)"
        )
    ours = make_tables(prefix, schema)
    with _end_transaction(connection):
        settings = read_settings(connection, ours)
    if settings is not None and is_usable(settings):
        return settings
    status = _check(connection, ours)
    if status.state == "missing" and auto_migrate:
        status = _settle(connection, ours, creates=True)
    elif status.state == "behind" and auto_migrate == "upgrade":
        _upgrade(connection, ours)
        status = _check(connection, ours)
    elif not status.usable and auto_migrate and _may_be_under_way(connection, ours):
        with suppress(SchemaError):  # without the right to lock, the state read above is reported
            status = _settle(connection, ours)
    if status.settings is None or not status.usable:
        raise SchemaError(status.message)
    return status.settings


def _may_be_under_way(connection: Connection, ours: Tables) -> bool:
    with _end_transaction(connection):
        return load_definition_of(connection).may_be_under_way(connection, ours)


def check(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Status:
    """Return the status of the tables with our names; change nothing."""
    absent = _describe_absent(target, prefix, schema)
    return absent or run_on(target, _check, prefix=prefix, schema=schema)


def _describe_absent(target: Target, prefix: str, schema: str | None) -> Status | None:
    """Return the status of a file that does not exist and must not be created."""
    if not isinstance(target, URL | str):
        return None
    definition = load_definition(get_dialect_name(target))
    place, tables = definition.find_absent(target, schema), make_tables(prefix, schema)
    return None if place is None else make_missing_status(place, tables, definition.by_owner)


def _check(connection: Connection, ours: Tables) -> Status:
    with _translate_refusals(connection), _end_transaction(connection):
        return read_status(connection, ours)


def _settle(connection: Connection, ours: Tables, *, creates: bool = False) -> Status:
    """Return the status; create missing tables, or finish a first upgrade that was interrupted."""
    with _translate_refusals(connection), lock(connection, ours):
        # Another process may have created them while this one waited for the lock.
        status = read_status(connection, ours)
        if status.state != ("missing" if creates else "behind"):
            return status
        if creates:
            _clear(connection, ours, status)
        elif _is_used(connection, ours):
            return status
        _run(connection, ours, lambda config: _import_command().upgrade(config, "head"))
        return read_status(connection, ours)


def _is_used(connection: Connection, ours: Tables) -> bool:
    """Return whether any table of the first revision but the settings contains rows.

    Those of later revisions may be missing, and have rows only beside these.
    """
    first = ours.threads, ours.lines, ours.checkpoints, ours.writes, ours.messages, ours.store
    one = (sa.select(sa.literal(1)).select_from(it).limit(1) for it in first)
    return any(connection.execute(it).first() for it in one)


def prepare(connection: Connection, ours: Tables) -> None:
    """Prepare the database for a migration by Alembic's own command.

    Raises:
        SchemaError: It would meet tables that the library did not create or does not know.
    """
    status = read_status(connection, ours)
    if status.state in {"foreign", "damaged", "newer", "too new"}:
        raise SchemaError(status.message)
    _clear(connection, ours, status)


def _clear(connection: Connection, ours: Tables, status: Status) -> None:
    """Drop the tables of an interrupted first upgrade, so that the next one can start."""
    for name in status.leftovers:
        kind = "VIEW" if name == ours.heads else "TABLE"
        what = quote(connection.dialect, name, ours.schema)
        connection.exec_driver_sql(f"DROP {kind} IF EXISTS {what}")


def upgrade(
    target: Target,
    revision: str = "head",
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> str | None:
    """Upgrade the schema; return the revision reached.

    Raises:
        SchemaError: tables of our names are not ours, or the database is newer than this library;
            or there is no such revision.
    """
    if revision != "head":
        _require_known(revision)
    return run_on(target, partial(_upgrade, revision=revision), prefix=prefix, schema=schema)


def _upgrade(connection: Connection, ours: Tables, revision: str = "head") -> str | None:
    _refuse_foreign(connection, ours)
    with _translate_refusals(connection), lock(connection, ours):
        status = read_status(connection, ours)
        if status.state in {"foreign", "damaged", "too new"}:
            raise SchemaError(status.message)
        if status.state in {"missing", "behind"}:
            _clear(connection, ours, status)
            _run(connection, ours, lambda config: _import_command().upgrade(config, revision))
        return read_status(connection, ours).revision


def _refuse_foreign(connection: Connection, ours: Tables) -> None:
    """Refuse foreign tables before taking the lock, whose table would change the database."""
    if load_definition_of(connection).commits_each:
        status = _check(connection, ours)
        if status.state in {"foreign", "too new"}:
            raise SchemaError(status.message)


def downgrade(
    target: Target,
    revision: str = "base",
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> str | None:
    """Downgrade the schema; ``base`` drops every table. Return the revision reached.

    Raises:
        SchemaError: there is nothing of ours, or the database is newer than this library.
    """
    _require_known(revision)
    if absent := _describe_absent(target, prefix, schema):
        raise SchemaError(absent.message)
    return run_on(target, partial(_downgrade, revision=revision), prefix=prefix, schema=schema)


def _downgrade(connection: Connection, ours: Tables, revision: str) -> str | None:
    _refuse_foreign(connection, ours)
    with _translate_refusals(connection), lock(connection, ours):
        status = read_status(connection, ours)
        goes_on = status.state == "damaged" and load_definition_of(connection).commits_each
        if status.state not in {"ok", "behind"} and not goes_on:
            raise SchemaError(status.message)
        _run(connection, ours, lambda config: _import_command().downgrade(config, revision))
        return read_status(connection, ours).revision


def drop(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
    """Drop every table of ours with its rows, and the table of revisions.

    Raises:
        SchemaError: See ``downgrade``.
    """
    downgrade(target, prefix=prefix, schema=schema)
    run_on(target, _drop_revisions, prefix=prefix, schema=schema)


def _drop_revisions(connection: Connection, ours: Tables) -> None:
    with _translate_refusals(connection), _end_transaction(connection):
        sa.Table(ours.version, sa.MetaData(), schema=ours.schema).drop(connection)
        connection.commit()


def name_place(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> str:
    """Return the address of the database without secrets, as messages have it."""
    return run_on(
        target,
        lambda connection, ours: make_place(connection).with_schema(ours.schema),
        prefix=prefix,
        schema=schema,
    )


def read_revision(
    target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> str | None:
    """Return the database's revision; ``None`` where there is no schema of ours."""
    return check(target, prefix=prefix, schema=schema).revision


def list_revisions() -> list[tuple[str, str]]:
    """Return the revisions that this library knows, oldest first, each with its title."""
    return [(script.revision, script.doc) for script in _read_scripts().walk_revisions()][::-1]


def list_losses(current: str, revision: str) -> dict[str, str] | None:
    """Return what a downgrade deletes, by table; ``None``: every table."""
    with _translate_errors():
        scripts = _read_scripts().iterate_revisions(current, revision, select_for_downgrade=True)
        removed = list(scripts)
    losses = (getattr(it.module, "LOSES", {}) for it in removed)
    return None if any(it.is_base for it in removed) else dict(ChainMap(*losses))


def render_upgrade(
    dialect: str, revision: str = "head", *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> str:
    """Return the statements that an upgrade would run, as text; needs no driver and no database.

    Args:
        dialect: ``sqlite``, ``postgresql`` or ``oracle``.
        revision: To where, or ``from:to``.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
    """
    for part in revision.split(":"):
        _require_known(part)
    output, dialect = io.StringIO(), get_dialect_name(dialect)
    load_definition(dialect).refuse_schema(schema)
    config = _make_config(make_tables(check_prefix(prefix, dialect), schema), output)
    config.attributes["dialect"] = dialect
    process.refuse_beneath_another()
    with process.lock(), _translate_errors():
        _import_command().upgrade(config, revision, sql=True)
    return output.getvalue()


def _require_known(revision: str) -> None:
    """Check that the revision exists, or is relative, such as ``+1``."""
    if not all(revision.split("@")):
        raise SchemaError("name a revision of 'locus-store db history'")
    if revision[0] not in "+-":
        with _translate_errors():
            _read_scripts().get_revisions(revision)


def _read_scripts() -> Any:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow, not needed to open

    return ScriptDirectory(str(SCRIPTS))


def _import_command() -> Any:
    from alembic import command  # noqa: PLC0415 - as above

    return command


def _make_config(ours: Tables, output: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes.update(prefix=ours.prefix, schema=ours.schema)
    return config


def _run(connection: Connection, ours: Tables, action: Callable[[Config], object]) -> None:
    config = _make_config(ours)
    config.attributes["connection"] = connection
    with _translate_errors():
        action(config)
    observe.connections.info("migrated the schema of %s", make_place(connection).shown)


@contextmanager
def _translate_errors() -> Iterator[None]:
    from alembic.script.revision import RevisionError  # noqa: PLC0415 - as above
    from alembic.util import CommandError  # noqa: PLC0415 - as above

    try:
        yield
    except (CommandError, RevisionError) as error:
        raise SchemaError(f"{error}; name a revision of 'locus-store db history'") from error


@contextmanager
def _end_transaction(connection: Connection) -> Iterator[None]:
    """End the transaction after the block, and refuse a connection that is in one."""
    refuse_transaction(connection)
    try:
        yield
    finally:
        connection.rollback()


@contextmanager
def _translate_refusals(connection: Connection) -> Iterator[None]:
    """Translate the server's refusals of this role or session into errors that name the remedy."""
    place = make_place(connection)
    try:
        yield
    except DBAPIError as error:
        remedy = load_definition_of(connection).find_remedy(error)
        if remedy is None:
            raise
        text = remedy.format(command="locus-store db upgrade")
        raise SchemaError(f"{place.shown}: {text} ({get_reason(error)})") from error


IncludeObject = Callable[[Any, Any, str, bool, Any], bool]
IncludeName = Callable[[Any, str, Any], bool]


def excluding(prefix: str = DEFAULT_PREFIX, *, then: IncludeObject | None = None) -> IncludeObject:
    """Return an ``include_object`` for your ``env.py`` that leaves the tables of ``prefix`` alone.

    Args:
        prefix: As the store is opened.
        then: Your own hook, asked about everything else.
    """
    is_ours = _make_name_filter(prefix)

    def include(item: Any, name: Any, kind: str, from_database: bool, other: Any) -> bool:
        if kind == "table" and is_ours(name):
            return False
        return then is None or then(item, name, kind, from_database, other)

    return include


def excluding_names(
    prefix: str = DEFAULT_PREFIX, *, then: IncludeName | None = None
) -> IncludeName:
    """Return an ``include_name`` for your ``env.py`` that does not reflect ``prefix``'s tables.

    Without it Alembic reads their columns and warns of types that SQLAlchemy does not know, such as
    ``vector``. Give ``include_object`` as well: the version table passes here, because Alembic
    reflects every table where no name passes, as in a database that has only ours.

    Args:
        prefix: As the store is opened.
        then: Your own hook, asked about everything else.
    """
    is_ours, passes = _make_name_filter(prefix), f"{prefix}version"

    def include(name: Any, kind: str, parents: Any) -> bool:
        if kind == "table" and is_ours(name):
            return name == passes  # type: ignore[no-any-return]  # a name
        return then is None or then(name, kind, parents)

    return include


def _make_name_filter(prefix: str) -> Callable[[Any], bool]:
    """Return a predicate that recognizes our tables by name."""
    names = make_tables(prefix).names
    moved = re.compile(rf"{prefix}({'|'.join(PARTITIONED)})_(p\d+_\d+|new|log|old)")
    made = ("search", "embeddings", "lock", "roles")  # on request
    # Oracle's indexes of words and vectors have tables of their own.
    grown = tuple(f"{of}{prefix}{it}".lower() for it in made for of in ("", "dr$", "vector$"))
    return lambda name: (
        name in names
        or str(name).lower().startswith(grown)
        or moved.fullmatch(str(name)) is not None
    )


include_object: Final = excluding()
"""``context.configure(..., include_object=include_object)``: for the default prefix."""

include_name: Final = excluding_names()
"""``context.configure(..., include_name=include_name)``: for the default prefix."""


def include_ours(ours: Tables, dialect: str) -> IncludeObject:
    """Return the ``include_object`` of our ``env.py``: our tables, and the dialect's indexes."""

    def include(item: Any, name: Any, kind: str, from_database: bool, other: Any) -> bool:
        if kind == "table":
            return name in ours.names
        if kind == "index" and not from_database:
            return dialect in item.info.get("dialects", (dialect,))
        return True

    return include
