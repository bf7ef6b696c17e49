"""What Alembic runs: on a borrowed connection, on a URL, or as SQL text."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Text
from sqlalchemy.schema import CreateSchema

from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.sql import migrate
from locus_store.sql.schema.definition import load_definition
from locus_store.sql.schema.migrations import get_dialect_name, lock, run_on
from locus_store.sql.schema.tables import DEFAULT_PREFIX, make_tables
from locus_store.sql.schema.user_ids import read_user_id_type
from locus_store.types.arguments import did_you_mean

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from locus_store.sql.schema.tables import Tables
    from locus_store.types.thread_info import UserIdType

# Migrations find prefix and schema here too.
options = context.config.attributes

OPTIONS = {"url", "prefix", "schema"}


def main() -> None:
    given = context.get_x_argument(as_dictionary=True)
    for name in given.keys() - OPTIONS:
        similar = did_you_mean(name, OPTIONS)
        raise InvalidArgumentError(f"no option -x {name}={similar}; options: url, prefix, schema")
    options.setdefault("prefix", given.get("prefix", DEFAULT_PREFIX))
    options.setdefault("schema", given.get("schema"))
    if context.is_offline_mode():
        offline(options.get("dialect") or get_dialect_name(find_url(given)))
    elif "connection" in options:
        online(options["connection"])
    else:
        run_on(find_url(given), alone, prefix=options["prefix"], schema=options["schema"])


def find_url(given: dict[str, str]) -> str:
    """Return the URL of ``-x url=``, of the environment, or the default, which is printed."""
    url = given.get("url", os.environ.get("LOCUS_STORE_URL"))
    if url is None:
        sys.stderr.write(f"the storage is the default, {migrate.DEFAULT_URL}\n")
        return migrate.DEFAULT_URL
    if not url.strip():
        raise InvalidArgumentError("the URL is empty: set LOCUS_STORE_URL, or pass -x url=…")
    return url


def alone(connection: Connection, ours: Tables) -> None:
    options.update(prefix=ours.prefix, schema=ours.schema)
    with lock(connection, ours):
        migrate.prepare(connection, ours)
        online(connection)


def offline(dialect: str) -> None:
    # The parameter style of most drivers doubles every %.
    style = {"paramstyle": "named"}
    configure(dialect, dialect_name=dialect, dialect_opts=style, literal_binds=True)
    migration = context.get_context()
    # As text, Oracle's `RETURNING ... INTO :ret_0` has nowhere to put what it returns.
    migration.dialect.insert_returning = False
    schema, starts = options["schema"], context.get_starting_revision_argument()
    if preface := load_definition(dialect).offline_preface:
        migration.impl.static_output(preface)
    with context.begin_transaction():
        if dialect == "postgresql" and schema is not None and starts is None:
            context.execute(CreateSchema(schema, if_not_exists=True))
        context.run_migrations()
    if not migration.impl.transactional_ddl:
        migration.impl.emit_commit()  # the rows after the last DDL


def online(connection: Connection) -> None:
    """Within the caller's transaction, which is the caller's to commit."""
    plain, name = make_tables(options["prefix"], options["schema"]), connection.dialect.name
    users = read_user_id_type(connection, plain)
    with load_definition(name).qualify(connection, plain) as ours:
        options["schema"] = ours.schema
        configure(name, users=users, connection=connection)
        context.run_migrations()


def configure(dialect: str, *, users: UserIdType = "string", **target: Any) -> None:
    ours = make_tables(options["prefix"], options["schema"], users)
    context.configure(
        target_metadata=ours.metadata,
        version_table=ours.version,
        version_table_schema=ours.schema,
        include_object=migrate.include_ours(ours, dialect),
        include_schemas=ours.schema is not None,
        include_name=lambda name, kind, _: kind != "schema" or name == ours.schema,
        render_as_batch=dialect == "sqlite",
        transactional_ddl=True if dialect == "sqlite" else None,
        **target,
    )
    if dialect == "postgresql":  # Alembic compares it with text: see ``columns.BoundText``
        context.get_context()._version.c.version_num.type = Text()  # noqa: SLF001


try:
    main()
except LocusStoreError as error:
    raise CommandError(str(error)) from error
