"""What stands in a database under our names: ours, missing, behind, too new, or foreign."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from locus_store.errors import SchemaError
from locus_store.sql.names import DEFAULT_PREFIX
from locus_store.sql.schema import Tables, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.engine import Connection

State = Literal["ok", "missing", "behind", "newer", "too new", "foreign", "damaged"]

REVISIONS: Final = ("0001", "0002")
"""The chain, oldest first; ids sort as text. Known here so that opening needs no Alembic."""

HEAD: Final = REVISIONS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a database says of itself."""

    store_id: str
    """Identity of the database; a restored backup has the same one."""
    revision: str
    compatibility_floor: str
    """The oldest library, by its newest revision, that may work on this database."""
    chain_factor: int
    """A chain ends when it exceeds this many times the state."""
    record_overhead: int
    """Bytes counted for each record beside its frames."""
    raw: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What was found where the schema should be."""

    state: State
    """``newer`` works with this library, ``too new`` does not."""
    revision: str | None
    message: str
    """One line: what is there and what to do."""
    settings: Settings | None = None
    leftovers: tuple[str, ...] = ()
    """Where it is ``missing``: tables and views of ours, without rows, of a first upgrade that was
    cut short."""

    @property
    def usable(self) -> bool:
        """Whether this library may work on it."""
        return self.state in {"ok", "newer"}


# --- in one SELECT --------------------------------------------------------------------------


def read_settings(connection: Connection, ours: Tables) -> Settings | None:
    """The settings in one SELECT; ``None`` where they cannot be read for any reason."""
    version = _version(ours)
    query = sa.union_all(
        sa.select(sa.literal_column("'revision'").label("name"), version.c.version_num),
        sa.select(ours.settings.c.name, ours.settings.c.value),
        *_asks_for_hidden(connection, ours),
    )
    try:
        rows = connection.execute(query).all()
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return None
    found = {name: value for name, value in rows}  # noqa: C416 - rows are not pairs
    return None if found.pop("hidden", None) else _settings(found)


def is_usable(settings: Settings) -> bool:
    """Whether this library may work on the database as it is."""
    if settings.revision in REVISIONS:
        return settings.revision == HEAD
    return settings.compatibility_floor <= HEAD


def _settings(rows: dict[str, str]) -> Settings | None:
    try:
        return Settings(
            store_id=rows["store_id"],
            revision=rows["revision"],
            compatibility_floor=rows["compatibility_floor"],
            chain_factor=int(rows["chain_factor"]),
            record_overhead=int(rows["record_overhead"]),
            raw=MappingProxyType(rows),
        )
    except (KeyError, ValueError):
        return None


# --- in full --------------------------------------------------------------------------------


def read_status(connection: Connection, ours: Tables) -> Status:
    """Everything under our names, looked at within the caller's transaction."""
    return _Look(connection, ours).status()


def missing(place: Place, ours: Tables) -> Status:
    """There is nothing."""
    where, command = place.within(ours.schema), place.command(ours)
    message = f"{where}: no locus-store schema; make it: {command}"
    return Status(state="missing", revision=None, message=message)


# --- where ----------------------------------------------------------------------------------

PLACE: Final = "locus_store_place"
"""Execution option of a connection whose engine's URL does not say where it leads: a ``Place``."""


@dataclass(frozen=True, slots=True)
class Place:
    """A database, for messages."""

    shown: str
    """Its URL, without secrets."""
    is_whole: bool
    """Whether that is all of it, so that it may be repeated in a command to type."""

    def within(self, schema: str | None) -> str:
        """With the database schema, if one is named."""
        return f"{self.shown} (schema {schema})" if schema else self.shown

    def command(self, ours: Tables) -> str:
        """What to type."""
        url = self.shown if self.is_whole else "…"
        only = "" if ours.prefix == DEFAULT_PREFIX else f" --prefix {ours.prefix}"
        only += f" --schema {ours.schema}" if ours.schema else ""
        return f"locus-store db upgrade --url '{url}'{only}"


def place_of(found: Connection | URL) -> Place:
    """Where a connection or URL leads."""
    if not isinstance(found, URL):
        place = found.get_execution_options().get(PLACE)
        if isinstance(place, Place):
            return place
        found = found.engine.url
    shown = masked(found)
    return Place(shown, is_whole=shown == found.render_as_string(hide_password=False))


def masked(url: URL) -> str:
    """The URL for messages: no password, not even one in the query string."""
    hidden = {key: "hidden" for key in url.query if _is_secret(key)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _is_secret(option: str) -> bool:
    return "passw" in option.lower() or "secret" in option.lower()


def home(connection: Connection, ours: Tables) -> str | None:
    """The database schema of our tables; ``None`` where one that is not named is not one."""
    find = _HOMES.get(connection.dialect.name)
    return ours.schema if find is None or ours.schema is not None else find(connection, ours)


def _on_search_path(connection: Connection, ours: Tables) -> str:
    """Where the version table is found, else where tables are made."""
    query = sa.text("""
        SELECT coalesce((
            SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relname = :version AND pg_table_is_visible(c.oid) AND c.relpersistence <> 't'
        ), current_schema())
    """)
    found = connection.scalar(query, {"version": ours.version})
    if found is None:
        raise SchemaError(
            f"{place_of(connection).shown}: the role's search_path names no schema that exists;"
            " name one: schema='locus' (locus-store db upgrade --schema locus)"
        )
    return str(found)


_HOMES: Final[dict[str, Callable[[Connection, Tables], str]]] = {"postgresql": _on_search_path}


def _names(connection: Connection, schema: str | None, wanted: frozenset[str]) -> set[str]:
    """Those of the names that are taken."""
    inspector = sa.inspect(connection)
    # Views first: when another process commits in between, the tables below are seen too.
    names = set(inspector.get_view_names(schema)) | set(inspector.get_table_names(schema))
    if connection.dialect.name == "sqlite":  # there a name's case does not matter
        names = {it.lower() for it in names}
        return {it for it in wanted if it.lower() in names}
    return names & wanted


def _relations(connection: Connection, schema: str | None, wanted: frozenset[str]) -> set[str]:
    """Of tables, views, indexes and sequences alike, which have one space of names."""
    query = sa.text("""
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = :schema AND c.relname IN :names
    """).bindparams(sa.bindparam("names", sorted(wanted), expanding=True))
    return set(connection.execute(query, {"schema": schema}).scalars())


def in_dictionary(
    connection: Connection, schema: str | None, wanted: frozenset[str]
) -> dict[str, set[str]]:
    """The columns of tables and views; the inspector asks much more, which takes long."""
    prepare: Any = connection.dialect
    query = sa.text("""
        SELECT c.table_name, c.column_name FROM all_tab_columns c
        WHERE c.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
        AND c.table_name IN :names
    """).bindparams(sa.bindparam("names", expanding=True))
    names = {prepare.denormalize_name(it): it for it in sorted(wanted)}
    owner = prepare.denormalize_name(schema)
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(query, {"owner": owner, "names": list(names)}):
        found.setdefault(names[table], set()).add(str(prepare.normalize_name(column)))
    return found


def _in_oracle(connection: Connection, schema: str | None, wanted: frozenset[str]) -> set[str]:
    return set(in_dictionary(connection, schema, wanted))


_TAKEN: Final = {"postgresql": _relations, "oracle": _in_oracle}


def commits_each(connection: Connection) -> bool:
    """Whether each definition commits, so that what fails halfway leaves something."""
    return connection.dialect.name == "oracle"


def may_be_under_way(connection: Connection, ours: Tables) -> bool:
    """Whether what was seen may be in the midst of a migration: its lock was made."""
    lock = f"{ours.prefix}lock"
    found = commits_each(connection) and in_dictionary(connection, ours.schema, frozenset({lock}))
    connection.rollback()
    return bool(found)


def _hidden(ours: Tables) -> Any:
    """Of our names, one that is found elsewhere on the search path than the version table."""
    relations = sa.table("pg_class", *map(sa.column, ("oid", "relname", "relnamespace")))
    versions = relations.alias("versions")
    schema_of_ours = sa.select(versions.c.relnamespace).where(
        versions.c.oid == sa.func.to_regclass(ours.version)
    )
    return sa.select(
        sa.literal_column("'hidden'").label("name"),
        sa.func.min(sa.cast(relations.c.relname, sa.Text)),
    ).where(
        relations.c.relname.in_(sorted(ours.names)),
        sa.func.pg_table_is_visible(relations.c.oid),
        relations.c.relnamespace != schema_of_ours.scalar_subquery(),
    )


_HIDDEN: Final = {"postgresql": _hidden}


def _asks_for_hidden(connection: Connection, ours: Tables) -> list[Any]:
    asks = _HIDDEN.get(connection.dialect.name)
    return [] if asks is None or ours.schema is not None else [asks(ours)]


class _Look:
    """One look at a database."""

    def __init__(self, connection: Connection, ours: Tables) -> None:
        self.connection = connection
        place = place_of(connection)
        self.missing = missing(place, ours)
        self.where, self.command = place.within(ours.schema), place.command(ours)
        self.hidden = [
            name
            for query in _asks_for_hidden(connection, ours)
            for _, name in connection.execute(query)
            if name
        ]
        self.ours = tables(ours.prefix, home(connection, ours))
        self.inspector = sa.inspect(connection)
        self._commits_each = commits_each(connection)

    def status(self) -> Status:
        ours = self.ours
        look = _TAKEN.get(self.connection.dialect.name, _names)
        taken = sorted(look(self.connection, ours.schema, ours.names))
        others = [name for name in taken if name != ours.version]
        revision = self._revision() if ours.version in taken else None
        if self.hidden:
            return self._foreign(self.hidden, first="on the search_path before ours, ")
        if not taken:
            return self.missing
        if revision is None:
            return self._begun(others) or self._foreign(others or taken)
        settings = self._settings(revision) if ours.settings.name in others else None
        if settings is not None:
            return self._judged(settings)
        if revision in REVISIONS and (others or self._commits_each):
            return self._damaged(revision, f"table {ours.settings.name} is gone or empty")
        return self._foreign(taken)

    def _begun(self, others: list[str]) -> Status | None:
        """What a downgrade to base leaves, or a first upgrade that was cut short; or ``None``."""
        if self._columns(self.ours.version) != {"version_num"}:
            return None
        if not others:
            return self.missing
        tables_there = [it for it in self.ours.metadata.sorted_tables if it.name in others]
        if not self._commits_each or not all(map(self._is_unused, tables_there)):
            return None
        message = (
            f"{self.where}: a first upgrade was cut short and left {len(others)} tables without "
            f"rows; make them anew: {self.command}"
        )
        return Status(state="missing", revision=None, message=message, leftovers=tuple(others))

    def _is_unused(self, table: sa.Table) -> bool:
        """Whether it is as we make it, and nobody put anything into it."""
        if not self._columns(table.name) <= {it.name for it in table.columns}:
            return False
        rows = sa.select(sa.literal(1)).select_from(table).limit(1)
        return table is self.ours.settings or not self.connection.execute(rows).first()

    def _revision(self) -> str | None:
        if "version_num" not in self._columns(self.ours.version):
            return None
        query = sa.select(sa.func.max(_version(self.ours).c.version_num))
        revision: str | None = self.connection.execute(query).scalar_one()
        return revision

    def _settings(self, revision: str) -> Settings | None:
        table = self.ours.settings
        if not {"name", "value"} <= self._columns(table.name):
            return None
        rows = self.connection.execute(sa.select(table.c.name, table.c.value)).all()
        return _settings({**{name: value for name, value in rows}, "revision": revision})  # noqa: C416

    def _judged(self, settings: Settings) -> Status:
        found = settings.revision
        if found == HEAD:
            lacking = self._lacking()
            if lacking:
                return self._damaged(found, f"it lacks {', '.join(lacking[:5])}")
            return self._known("ok", settings, f"schema revision {found}, up to date")
        if found in REVISIONS:
            message = (
                f"schema revision {found} is behind this library's {HEAD}; upgrade it:"
                f" {self.command}, or open with auto_migrate='upgrade'"
            )
            return self._known("behind", settings, message)
        if is_usable(settings):
            message = f"schema revision {found}, newer than this library's {HEAD} and compatible"
            return self._known("newer", settings, message)
        message = (
            f"schema revision {found} asks for a locus-store that knows"
            f" {settings.compatibility_floor}, this one knows up to {HEAD}; install a newer one:"
            " pip install --upgrade locus-store"
        )
        return self._known("too new", settings, message)

    def _lacking(self) -> list[str]:
        return [
            f"{table.name}.{column.name}"
            for table in self.ours.metadata.sorted_tables
            for column in table.columns
            if column.name not in self._columns(table.name)
        ]

    def _columns(self, table: str) -> set[str]:
        schema = self.ours.schema
        if self.connection.dialect.name == "oracle":
            found = in_dictionary(self.connection, schema, frozenset({table}))
            return found.get(table, set())
        if not self.inspector.has_table(table, schema):
            return set()
        return {column["name"] for column in self.inspector.get_columns(table, schema)}

    def _known(self, state: State, settings: Settings, message: str) -> Status:
        return Status(
            state=state,
            revision=settings.revision,
            message=f"{self.where}: {message}",
            settings=settings,
        )

    def _damaged(self, revision: str, what: str) -> Status:
        message = (
            f"{self.where}: schema revision {revision} was changed by hand: {what};"
            " restore a backup"
        )
        return Status(state="damaged", revision=revision, message=message)

    def _foreign(self, taken: list[str], *, first: str = "") -> Status:
        noun = "table" if len(taken) == 1 else "tables"
        remedy = (
            f"Name our schema (schema='{self.ours.schema}')"
            if first
            else ("Choose another prefix (prefix='mine_'; locus-store db upgrade --prefix mine_)")
        )
        message = (
            f"{self.where}: {first}{noun} {', '.join(taken)} not made by locus-store; nothing was"
            f" changed. {remedy} or another database"
        )
        return Status(state="foreign", revision=None, message=message)


def _version(ours: Tables) -> sa.TableClause:
    return sa.table(ours.version, sa.column("version_num"), schema=ours.schema)
