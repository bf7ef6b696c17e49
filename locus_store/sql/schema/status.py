"""Status of the schema with our names: ok, missing, behind, too new, damaged, or foreign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from locus_store.sql.schema.definition import DatabasePlace, load_definition_of, make_place
from locus_store.sql.schema.tables import Tables, make_tables
from locus_store.types.thread_info import UserIdType, check_user_id_type

State = Literal["ok", "missing", "behind", "newer", "too new", "foreign", "damaged"]

REVISIONS: Final = ("0001",)
"""The chain, oldest first; ids sort as text. Known here so that opening needs no Alembic."""

HEAD: Final = REVISIONS[-1]

STORED_FORM: Final = ("stored_form", "2")
"""Row of ``settings`` with the form of keys and values; no release had another one."""

USERS_SETTING: Final = "user_id_type"
"""Row of ``settings`` with the type of users' ids."""

SEARCH_SETTING: Final = "full_text_index"
"""Row of ``settings`` that says that the index for text search was created."""

PARTITIONS_SETTING: Final = "partitions"
"""Row of ``settings`` with the number of hash partitions; plain tables have none."""

UNFINISHED_SETTING: Final = "partitions_wanted"
"""Row of ``settings`` with the number of partitions that the tables are being moved to."""

SHARDS_SETTING: Final = "shards"
"""Row of ``settings`` with the layout of the set of shards that the database belongs to."""

NO_LAYOUT: Final = "none"
"""The known layout if there is no such row."""

ONE_SHARD: Final = '%"shard"_0,"shards"_1,"former"_1,%'
"""A pattern of the layouts of one shard, where each client may create threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a database stores about itself."""

    store_id: str
    """Identity of the database; a restored backup has the same one."""
    revision: str
    compatibility_floor: str
    """The oldest library, by its newest revision, that may work on this database."""
    chain_factor: int
    """A chain ends when it exceeds this many times the state."""
    record_overhead: int
    """Bytes counted for each record beside its frames."""
    user_id_type: UserIdType
    """The type of the column for users' ids."""
    raw: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the schema that was found."""

    state: State
    """``newer`` works with this library, ``too new`` does not."""
    revision: str | None
    message: str
    """One line: the state of the schema, and what to do."""
    settings: Settings | None = None
    leftovers: tuple[str, ...] = ()
    """If it is ``missing``: tables and views of ours, without rows, of a first upgrade that was
    cut short."""

    @property
    def usable(self) -> bool:
        """True if this library may work on the schema."""
        return self.state in {"ok", "newer"}


def read_settings(connection: Connection, ours: Tables) -> Settings | None:
    """Return the settings by one SELECT; ``None`` if they cannot be read for any reason."""
    version = _make_version_table(ours)
    query = sa.union_all(
        sa.select(sa.literal_column("'revision'").label("name"), version.c.version_num),
        sa.select(ours.settings.c.name, ours.settings.c.value),
        *load_definition_of(connection).make_hidden_queries(ours),
    )
    try:
        rows = connection.execute(query).all()
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return None
    found = {name: value for name, value in rows}  # noqa: C416 - rows are not pairs
    return None if found.pop("hidden", None) else _parse_settings(found)


def read_setting(connection: Connection, ours: Tables, name: str) -> str | None:
    """Return the value of a row of ``settings``; ``None`` if there is no such row."""
    c = ours.settings.c
    found: str | None = connection.execute(sa.select(c.value).where(c.name == name)).scalar()
    return found


def is_usable(settings: Settings) -> bool:
    """Return whether this library may work on the database without a migration."""
    is_newer = settings.revision not in REVISIONS and settings.compatibility_floor <= HEAD
    has_form = STORED_FORM in settings.raw.items()
    return has_form and (is_newer or settings.revision == HEAD)


def describe_partitions(settings: Settings) -> str:
    """Return the number of partitions, and the command that finishes a move to another number."""
    count = settings.raw.get(PARTITIONS_SETTING)
    text = f", {count} partitions by line" if count else ""
    if wanted := settings.raw.get(UNFINISHED_SETTING):
        text += f"; a move of the tables to {wanted} partitions is not finished: "
        text += f"locus-store db partition --by-line {wanted}"
    return text


def _parse_settings(rows: dict[str, str]) -> Settings | None:
    try:
        return Settings(
            store_id=rows["store_id"],
            revision=rows["revision"],
            compatibility_floor=rows["compatibility_floor"],
            chain_factor=int(rows["chain_factor"]),
            record_overhead=int(rows["record_overhead"]),
            user_id_type=check_user_id_type(rows[USERS_SETTING]),
            raw=MappingProxyType(rows),
        )
    except (KeyError, ValueError):
        return None


def read_status(connection: Connection, ours: Tables) -> Status:
    """Return the status of all tables with our names, within the caller's transaction."""
    return _Look(connection, ours).make_status()


def make_missing_status(place: DatabasePlace, ours: Tables, by_owner: str) -> Status:
    """Return the status for a database without our tables."""
    where, command = place.with_schema(ours.schema), place.make_command(ours)
    message = f"{where}: no locus-store schema; check the URL, or create it{by_owner}: {command}"
    return Status(state="missing", revision=None, message=message)


class _Look:
    """An examination of a database's schema."""

    def __init__(self, connection: Connection, ours: Tables) -> None:
        self.connection = connection
        place = make_place(connection)
        self.definition = load_definition_of(connection)
        by_owner = self.definition.by_owner
        self.missing = make_missing_status(place, ours, by_owner)
        self.where = place.with_schema(ours.schema)
        self.command = f"{by_owner}: {place.make_command(ours)}"
        self.hidden = [
            name
            for query in self.definition.make_hidden_queries(ours)
            for _, name in connection.execute(query)
            if name
        ]
        self.ours = make_tables(ours.prefix, self.definition.find_schema(connection, ours))
        self._commits_each = self.definition.commits_each

    def make_status(self) -> Status:
        ours = self.ours
        taken = sorted(self.definition.find_taken(self.connection, ours.schema, ours.names))
        others = [name for name in taken if name != ours.version]
        revision = self._read_revision() if ours.version in taken else None
        if self.hidden:
            return self._make_foreign(self.hidden, first="on the search_path before ours, ")
        if not taken:
            return self.missing
        if revision is None:
            return self._find_begun(others) or self._make_foreign(others or taken)
        settings = self._read_settings(revision) if ours.settings.name in others else None
        if settings is not None:
            return self._judge(settings)
        if revision in REVISIONS and (others or self._commits_each):
            return self._make_damaged(revision, f"table {ours.settings.name} is gone or empty")
        return self._make_foreign(taken)

    def _find_begun(self, others: list[str]) -> Status | None:
        """Return the status after a downgrade to base or an interrupted first upgrade, if any."""
        if self._list_columns(self.ours.version) != {"version_num"}:
            return None
        if not others:
            return self.missing
        tables_there = [it for it in self.ours.metadata.sorted_tables if it.name in others]
        if not self._commits_each or not all(map(self._is_unused, tables_there)):
            return None
        message = (
            f"{self.where}: a first upgrade was cut short and left {len(others)} tables without "
            f"rows; make them anew{self.command}"
        )
        return Status(state="missing", revision=None, message=message, leftovers=tuple(others))

    def _is_unused(self, table: sa.Table) -> bool:
        """Return whether the table has our columns only, and no rows."""
        if not self._list_columns(table.name) <= {it.name for it in table.columns}:
            return False
        rows = sa.select(sa.literal(1)).select_from(table).limit(1)
        return table is self.ours.settings or not self.connection.execute(rows).first()

    def _read_revision(self) -> str | None:
        if "version_num" not in self._list_columns(self.ours.version):
            return None
        query = sa.select(sa.func.max(_make_version_table(self.ours).c.version_num))
        revision: str | None = self.connection.execute(query).scalar_one()
        return revision

    def _read_settings(self, revision: str) -> Settings | None:
        table = self.ours.settings
        if not {"name", "value"} <= self._list_columns(table.name):
            return None
        rows = self.connection.execute(sa.select(table.c.name, table.c.value)).all()
        return _parse_settings({**{name: value for name, value in rows}, "revision": revision})  # noqa: C416

    def _judge(self, settings: Settings) -> Status:
        found = settings.revision
        if STORED_FORM not in settings.raw.items():
            message = (
                "a locus-store that was not released made the tables, with another form of keys and"
                " values; export them with that one, and import them into another database"
            )
            return self._make_status("foreign", settings, message)
        if found == HEAD:
            lacking = [
                str(column)
                for table in self.ours.metadata.sorted_tables
                for found_columns in [self._list_columns(table.name)]
                for column in table.columns
                if column.name not in found_columns
            ]
            if lacking:
                return self._make_damaged(found, f"it lacks {', '.join(lacking[:5])}")
            extra = describe_partitions(settings)
            return self._make_status("ok", settings, f"schema revision {found}, up to date{extra}")
        if found in REVISIONS:
            message = (
                f"schema revision {found} is behind this library's {HEAD}; upgrade it"
                f"{self.command}, or open with auto_migrate='upgrade'"
            )
            return self._make_status("behind", settings, message)
        if is_usable(settings):
            message = f"schema revision {found}, newer than this library's {HEAD} and compatible"
            return self._make_status("newer", settings, message)
        message = (
            f"schema revision {found} asks for a locus-store that knows"
            f" {settings.compatibility_floor}, this one knows up to {HEAD}; install a newer one:"
            " pip install --upgrade locus-store"
        )
        return self._make_status("too new", settings, message)

    def _list_columns(self, table: str) -> set[str]:
        return self.definition.list_columns(self.connection, self.ours.schema, table)

    def _make_status(self, state: State, settings: Settings, message: str) -> Status:
        return Status(
            state=state,
            revision=settings.revision,
            message=f"{self.where}: {message}",
            settings=settings,
        )

    def _make_damaged(self, revision: str, what: str) -> Status:
        message = (
            f"{self.where}: schema revision {revision} was changed by hand: {what};"
            " restore a backup"
        )
        return Status(state="damaged", revision=revision, message=message)

    def _make_foreign(self, tables: list[str], *, first: str = "") -> Status:
        noun = "table" if len(tables) == 1 else "tables"
        remedy = (
            f"Name our schema (schema='{self.ours.schema}')"
            if first
            else ("Choose another prefix (prefix='mine_'; locus-store db upgrade --prefix mine_)")
        )
        message = (
            f"{self.where}: {first}{noun} {', '.join(tables)} not made by locus-store; nothing was"
            f" changed. {remedy} or another database"
        )
        return Status(state="foreign", revision=None, message=message)


def _make_version_table(ours: Tables) -> sa.TableClause:
    return sa.table(ours.version, sa.column("version_num"), schema=ours.schema)
