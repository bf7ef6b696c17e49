"""A database's part in making, finding and changing the schema, and its name in messages."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from locus_store.errors import InvalidArgumentError
from locus_store.sql.columns.dialect_columns import DIALECTS
from locus_store.sql.schema.tables import DEFAULT_PREFIX, Tables
from locus_store.types.arguments import did_you_mean
from locus_store.values.vectors import Metric

T = TypeVar("T")
OnTables = Callable[[Connection, Tables], T]
"""Works on the tables of a prefix and schema."""

OLD_USERS: Final = "user_id_before"
"""The column for users' ids while another type is made, where that takes a new column."""


class SchemaDefinition(ABC):
    """One database's part; the methods that are not abstract suit most databases."""

    commits_each: ClassVar[bool] = False
    """Each definition commits, so a migration that fails halfway leaves something."""

    offline_preface: ClassVar[str] = ""
    """Stands before statements that are run by hand: makes them end at the first error."""

    by_owner: ClassVar[str] = " as the role that owns the tables"
    """Follows "create it" or "upgrade it" in messages, before the command."""

    @abstractmethod
    def run_on_url(self, url: str | URL, body: OnTables[T], prefix: str, schema: str | None) -> T:
        """Connect, run ``body`` and disconnect; ``migrations.run_on`` names the errors."""

    def find_absent(self, url: str | URL, schema: str | None) -> DatabasePlace | None:
        """Return the place of a database that connecting to it would create."""
        return None

    def refuse_schema(self, schema: str | None) -> None:
        """Refuse the name of a database schema where there are none."""
        del schema

    @abstractmethod
    def lock(self, connection: Connection, ours: Tables) -> AbstractContextManager[None]:
        """Begin a transaction, alone among the migrations of this database; commit at the end."""

    def qualify(self, connection: Connection, ours: Tables) -> AbstractContextManager[Tables]:
        """Prepare a locked connection for Alembic; give the tables as it is to name them."""
        return nullcontext(ours)

    def translate_owner_errors(self, connection: Connection) -> AbstractContextManager[None]:
        """Translate the refusal of an index to a role that does not own the tables."""
        return nullcontext()

    def find_remedy(self, error: DBAPIError) -> str | None:
        """Return what to do where the server refuses a migration; ``{command}`` repeats it."""
        return None

    def find_schema(self, connection: Connection, ours: Tables) -> str | None:
        """Return the database schema of our tables; ``None`` is the default one."""
        return ours.schema

    @abstractmethod
    def find_taken(
        self, connection: Connection, schema: str | None, table_names: frozenset[str]
    ) -> set[str]:
        """Return those of the names that a table or view has."""

    def list_columns(self, connection: Connection, schema: str | None, table: str) -> set[str]:
        """Return the names of a table's columns; none where there is no such table."""
        inspector = sa.inspect(connection)
        if not inspector.has_table(table, schema):
            return set()
        return {column["name"] for column in inspector.get_columns(table, schema)}

    def make_hidden_queries(self, ours: Tables) -> list[Any]:
        """Return queries for names of ours that another schema hides; rows of (label, name)."""
        return []

    def may_be_under_way(self, connection: Connection, ours: Tables) -> bool:
        """Return whether another process may be in the midst of a migration."""
        return False

    def lock_threads(self, connection: Connection, ours: Tables) -> None:
        """Keep others from writing threads until the transaction ends, where it does not yet."""
        del connection, ours

    @abstractmethod
    def change_user_column(
        self, dialect: Dialect, ours: Tables, columns: Collection[str]
    ) -> list[str]:
        """Return the statements that change the column for users' ids to the type that it has here.

        An id that is not such a number fails the statements, so that they may be run by hand.

        Args:
            dialect: The database's.
            ours: The tables, with the new type.
            columns: The columns of the table; ``OLD_USERS`` is left by a run that was cut short.
        """

    def secure(self, connection: Connection, ours: Tables, *names: str) -> None:
        """Put tables or the view that were just created under row security, if the others are."""
        del connection, ours, names

    def find_vector_schema(self, connection: Connection) -> str:
        """Return the schema of the extension for vectors; ``""`` where there is none."""
        return ""

    def require_vectors(self, connection: Connection) -> None:
        """Refuse a server that cannot have the extension for vectors; say what to install."""
        del connection

    @abstractmethod
    def render_embedding_columns(self, connection: Connection, ours: Tables, dimension: int) -> str:
        """Return the columns of the table of embeddings: item, part, embedding.

        Raises:
            UnsupportedError: The server has no vectors.
        """

    def drop_unfinished(self, connection: Connection, ours: Tables) -> None:
        """Drop a table of embeddings that was made, and whose setting was not written."""
        del connection, ours

    def make_vector_index(
        self, connection: Connection, ours: Tables, metric: Metric, method: str
    ) -> bool | None:
        """Make an index for one metric; ``False``: it was there; ``None``: there are no such.

        Raises:
            UnsupportedError: The database cannot have this index beside those that are there.
        """
        return None


def make_column_type(dialect: Dialect, ours: Tables) -> str:
    """Return the type of the column for users' ids in SQL."""
    return str(dialect.type_compiler_instance.process(ours.threads.c.user_id.type))


def make_user_index(ours: Tables) -> sa.Index:
    """Return the index of a user's threads."""
    return next(it for it in ours.threads.indexes if "user_id" in it.columns)


def quote(dialect: Dialect, name: str, schema: str | None) -> str:
    """Return a table's, view's or index's name in SQL."""
    return dialect.identifier_preparer.format_table(sa.table(name, schema=schema))


def load_definition(dialect: str) -> SchemaDefinition:
    """Return the part of a database.

    Raises:
        InvalidArgumentError: The library has no such dialect.
    """
    if dialect not in DIALECTS:
        similar = did_you_mean(dialect, DIALECTS)
        raise InvalidArgumentError(
            f"dialect {dialect!r}{similar}: choose one of {', '.join(DIALECTS)}"
        )
    module = import_module(f"locus_store.backends.{dialect}.definition")
    found: SchemaDefinition = module.DEFINITION
    return found


def load_definition_of(connection: Connection) -> SchemaDefinition:
    """Return the part of the database that a connection leads to."""
    return load_definition(connection.dialect.name)


PLACE: Final = "locus_store_place"
"""Execution option of a connection whose engine's URL does not say where it leads."""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database as messages show it."""

    shown: str
    """The URL without secrets."""
    is_whole: bool
    """``shown`` is the complete URL, so that a command to type may repeat it."""

    def with_schema(self, schema: str | None) -> str:
        """Return the URL, with the database schema if one is named."""
        return f"{self.shown} (schema {schema})" if schema else self.shown

    def make_command(self, ours: Tables) -> str:
        """Return the command that upgrades the schema."""
        url = self.shown if self.is_whole else "…"
        return f"locus-store db upgrade --url '{url}'{write_options(ours)}"


def write_options(ours: Tables) -> str:
    """Return the options of a command that name the tables; none for the usual ones."""
    options = "" if ours.prefix == DEFAULT_PREFIX else f" --prefix {ours.prefix}"
    return options + (f" --schema {ours.schema}" if ours.schema else "")


def make_place(source: Connection | URL) -> DatabasePlace:
    """Return the place of a connection or URL."""
    if not isinstance(source, URL):
        place = source.get_execution_options().get(PLACE)
        if isinstance(place, DatabasePlace):
            return place
        source = source.engine.url
    shown = mask_url(source)
    return DatabasePlace(shown, is_whole=shown == source.render_as_string(hide_password=False))


def is_same_database(text: str, engine: object) -> bool:
    """Return whether a URL names the database of an engine; its password is not compared."""
    theirs = getattr(engine, "url", None)
    try:
        asked = make_url(text)
    except (ArgumentError, ValueError):
        return False
    if not isinstance(theirs, URL):
        return False
    if any(getattr(asked, it) != getattr(theirs, it) for it in ("username", "host", "port")):
        return False
    return (
        _get_database_name(asked) == _get_database_name(theirs)
        and asked.query.items() <= theirs.query.items()
    )


def _get_database_name(url: URL) -> str:
    """Return the database; without a host it may be a file."""
    name = unquote(url.database or "").replace(":memory:", "")
    return name if url.host or not name else os.path.realpath(name)


def mask_url(url: URL) -> str:
    """Return the URL for messages, without passwords, those in the query string included."""
    hidden = {key: "hidden" for key in url.query if re.search("passw|secret", key.lower())}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
