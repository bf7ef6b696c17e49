"""All tables, as of the newest revision in ``alembic/``.

Only ``threads`` and ``lines`` hold the text ids of a thread; the tables that grow hold the
surrogate key. There are no foreign keys: every delete names the rows it removes, and ``writes``
may be stored before their checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import sqlalchemy as sa

from locus_store.errors import InvalidArgumentError
from locus_store.sql.columns.dialect_columns import (
    BigInteger,
    Double,
    Integer,
    Json,
    JsonValue,
    PlainText,
    SmallInteger,
)
from locus_store.sql.columns.types import (
    BigKey,
    Blob,
    Digest,
    Embedding,
    Instant,
    Key,
    LongText,
    Minute,
    Path,
    UserId,
    make_clock,
    make_moment,
)
from locus_store.types.arguments import MAX_TENANT_CHARACTERS, check_text
from locus_store.types.thread_info import UserIdType

DEFAULT_PREFIX: Final = "locus_"

_MAX_NAME: Final = 63
"""Characters of a name in PostgreSQL; indexes and constraints keep to it everywhere."""

_LONGEST_TABLE: Final = "checkpoints"
_MAX_TABLE_NAME: Final = {"postgresql": _MAX_NAME, "oracle": 128, "sqlite": 255}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HASH_CHARACTERS: Final = 8


def derive_name(name: str) -> str:
    """Return the name of an index or constraint, shortened to 63 characters by a hash."""
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: _MAX_NAME - _HASH_CHARACTERS - 1]}_{digest}"


def compute_max_prefix(dialect: str) -> int:
    """Return the longest prefix, in characters, that lets every table's name fit."""
    return _MAX_TABLE_NAME.get(dialect, _MAX_NAME) - len(_LONGEST_TABLE)


def check_prefix(prefix: str, dialect: str = "sqlite") -> str:
    """Return the prefix; refuse one that cannot start the name of a table."""
    _check("prefix", prefix, compute_max_prefix(dialect), dialect, DEFAULT_PREFIX)
    return prefix


def _check_schema(schema: str) -> None:
    """Refuse a schema of over 63 bytes, which PostgreSQL would cut, or with a colon."""
    check_text("schema", schema, minimum=0)
    if len(schema.encode()) > _MAX_NAME or ":" in schema:
        raise InvalidArgumentError(
            f"schema={schema!r} must have at most {_MAX_NAME} bytes in UTF-8, and no colon"
        )


def parse_prefix(table_name: str | None, prefix: str | None, dialect: str) -> str:
    """Return the prefix for a ``table_name`` of the Locus SDK.

    Raises:
        InvalidArgumentError: Both are given, or the one given cannot start the name of a table.
    """
    if table_name is None:
        return check_prefix(DEFAULT_PREFIX if prefix is None else prefix, dialect)
    if prefix is not None:
        raise InvalidArgumentError("give table_name or prefix, not both")
    if not isinstance(table_name, str):
        raise InvalidArgumentError(f"table_name={table_name!r} must be a str")
    stem = table_name.removesuffix("_checkpoints").removesuffix("_store").rstrip("_")
    most = compute_max_prefix(dialect) - 1 + len(table_name) - len(stem)
    _check("table_name", table_name, most, dialect, "locus_checkpoints")
    if not stem:
        raise InvalidArgumentError(f"table_name={table_name!r} names no table")
    return f"{stem}_"


def _check(argument: str, name: object, most: int, dialect: str, example: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > most:
        raise InvalidArgumentError(
            f"{argument}={name!r} must be a letter or _, then letters, digits and _, with at most "
            f"{most} characters in all on {dialect}, for example {example!r}"
        )


# Characters. Every index key stays within Oracle's 6,398 bytes and PostgreSQL's 2,704 even when
# each character takes four.
TENANT_LENGTH: Final = MAX_TENANT_CHARACTERS
ID_LENGTH: Final = 255
STORE_NAMESPACE_LENGTH: Final = 300
NAME_LENGTH: Final = 1000

_ONLY_POSTGRESQL = {"dialects": ("postgresql",)}
_ONLY_SERVERS = {"dialects": ("postgresql", "oracle")}

PARTITIONED: Final = ("checkpoints", "segments", "writes", "search")
"""Tables that PostgreSQL may divide by line; the last one is created on request."""

MAX_PARTITIONS: Final = 256


def make_partition_name(table_name: str, count: int, number: int) -> str:
    """Return the name of a partition of a table that is divided into ``count``."""
    return f"{table_name}_p{count}_{number}"


class Index(sa.Index):
    """An index whose options are resolved when a statement needs them.

    Each option names a dialect, which SQLAlchemy imports to check it; PostgreSQL's takes a tenth of
    a second, and opening another database does not need it.
    """

    inherit_cache = True

    def __init__(
        self, name: str, *columns: Any, info: dict[Any, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(name, *columns, info=info)
        self._unread = options

    @property
    def dialect_options(self) -> Any:
        if "dialect_options" not in self.__dict__:
            found = super().dialect_options  # it is kept in __dict__
            self._validate_dialect_kwargs(self._unread)
            return found
        return self.__dict__["dialect_options"]


def _index_of_set(name: str, column: str, *columns: str) -> Index:
    """Return an index of the rows that have a value in a column."""
    condition = sa.text(f"{column} IS NOT NULL")
    return Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


METADATA: Final = sa.MetaData(naming_convention={"pk": "%(table_name)s_pk"})
"""The tables of the default prefix."""

# One conversation or run.
sa.Table(
    "locus_threads",
    METADATA,
    sa.Column("thread", BigKey, sa.Identity(), primary_key=True),
    sa.Column("tenant", Key(TENANT_LENGTH), nullable=False),
    sa.Column("thread_id", Key(ID_LENGTH), nullable=False),
    sa.Column("user_id", Key(ID_LENGTH), nullable=True),
    sa.Column("name", Key(NAME_LENGTH), nullable=True),
    sa.Column("metadata", Json, nullable=True),
    sa.Column("created_at", Instant, default=make_clock(), nullable=False),
    # Last activity to the minute: an index on an exact time turns HOT updates off.
    sa.Column("active_at", Instant, default=Minute(), nullable=False),
    sa.Column("expires_at", Instant, nullable=True),
    sa.UniqueConstraint("tenant", "thread_id", name="locus_threads_id"),
    Index(
        "locus_threads_active",
        "tenant",
        "active_at",
        "thread",
        # Always true, and said by the queries that list threads only: without statistics this
        # index looked as good as any to find one thread.
        postgresql_where=sa.text("active_at > '-infinity'"),
    ),
    _index_of_set("locus_threads_user", "user_id", "tenant", "user_id", "active_at", "thread"),
    _index_of_set("locus_threads_expires", "expires_at", "expires_at"),
    sqlite_autoincrement=True,
)

# A (tenant, thread, namespace) in one incarnation.
sa.Table(
    "locus_lines",
    METADATA,
    sa.Column("line", BigKey, sa.Identity(), primary_key=True),
    sa.Column("tenant", Key(TENANT_LENGTH), nullable=False),
    sa.Column("thread_id", Key(ID_LENGTH), nullable=False),
    sa.Column("namespace", Key(ID_LENGTH), nullable=False),
    # Sequence of the checkpoint that a load gives; NULL: no such line for anybody.
    sa.Column("head", BigInteger, nullable=True),
    # The chain whose last record is the head; NULL: the next save starts a chain.
    sa.Column("open_chain", BigInteger, nullable=True),
    # Over the current chain: frame bytes and the overhead of each record.
    sa.Column("open_bytes", BigInteger, server_default=sa.text("0"), nullable=False),
    # Checkpoints with a smaller sequence are hidden and await pruning.
    sa.Column("floor", BigInteger, server_default=sa.text("0"), nullable=False),
    sa.Column("last_sequence", BigInteger, server_default=sa.text("0"), nullable=False),
    # The load whose descendant moved the head.
    sa.Column("writer", Key(ID_LENGTH), nullable=True),
    # The run that moved the head.
    sa.Column("run", Key(ID_LENGTH), nullable=True),
    sa.Column("updated_at", Instant, default=make_clock(), nullable=False),
    sa.UniqueConstraint("tenant", "thread_id", "namespace", name="locus_lines_id"),
    sqlite_autoincrement=True,  # its fillfactor: SQLAlchemy 2.0 has no word for it here
)

# One saved version: a record of its chain.
#
# The long columns are last: SQLite walks their overflow pages to reach later columns.
sa.Table(
    "locus_checkpoints",
    METADATA,
    sa.Column("line", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    # Sequence of the chain's first record.
    sa.Column("chain", BigInteger, nullable=False),
    sa.Column("parent", BigInteger, nullable=True),
    sa.Column("checkpoint_id", Key(ID_LENGTH), nullable=False),
    sa.Column("digest", Digest, nullable=False),
    # How the payload is read; 0: JSON frames.
    sa.Column("codec", SmallInteger, server_default=sa.text("0"), nullable=False),
    sa.Column("metadata", Json, nullable=True),
    # Fields of the state itself: ``agent_id``, ``tags``.
    sa.Column("labels", Json, nullable=True),
    sa.Column("created_at", Instant, default=make_moment(), nullable=False),
    # The text that the checkpoint added; NULL unless the full-text index exists.
    sa.Column("text", PlainText, nullable=True),
    # NULL: the payload is in a segment, or empty.
    sa.Column("payload", Blob, nullable=True),
    sa.UniqueConstraint("line", "checkpoint_id", name="locus_checkpoints_id"),
    *(
        Index(
            f"locus_checkpoints_{name}",
            name,
            postgresql_using="gin",
            postgresql_ops={name: "jsonb_path_ops"},
            info=_ONLY_POSTGRESQL,
        )
        for name in ("metadata", "labels")
    ),
)

# The payloads of a chain's records from ``first`` to ``last``: see ``versions.segments``.
sa.Table(
    "locus_segments",
    METADATA,
    sa.Column("line", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first", BigInteger, nullable=False),
    sa.Column("chain", BigInteger, nullable=False),
    sa.Column("payload", Blob, nullable=False),
)

# An output of a task that ran before its step's checkpoint was complete.
sa.Table(
    "locus_writes",
    METADATA,
    sa.Column("line", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("checkpoint_id", Key(ID_LENGTH), primary_key=True),
    sa.Column("task_id", Key(ID_LENGTH), primary_key=True),
    sa.Column("idx", Integer, primary_key=True, autoincrement=False),
    sa.Column("channel", Key(ID_LENGTH), nullable=False),
    sa.Column("type", Key(ID_LENGTH), nullable=True),
    sa.Column("task_path", PlainText, nullable=True),
    # Sequence of the checkpoint that the payload's frames are against; NULL: whole.
    sa.Column("basis", BigInteger, nullable=True),
    sa.Column("created_at", Instant, default=make_clock(), nullable=False),
    sa.Column("payload", Blob, nullable=True),
)

# The message log of a (thread, namespace). Who changes it holds the lock of its thread.
sa.Table(
    "locus_logs",
    METADATA,
    sa.Column("thread", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("namespace", Key(ID_LENGTH), primary_key=True),
    # Grows with each change.
    sa.Column("revision", BigInteger, nullable=False),
    sa.Column("message_count", BigInteger, nullable=False),
    # No message had a greater sequence.
    sa.Column("last_sequence", BigInteger, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
)

# One entry of a message log.
sa.Table(
    "locus_messages",
    METADATA,
    sa.Column("thread", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("namespace", Key(ID_LENGTH), primary_key=True),
    sa.Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", Key(ID_LENGTH), nullable=False),
    sa.Column("role", Key(ID_LENGTH), nullable=False),
    sa.Column("metadata", Json, nullable=True),
    sa.Column("created_at", Instant, default=make_clock(), nullable=False),
    # Of the message.
    sa.Column("digest", Digest, nullable=False),
    sa.Column("text", LongText, nullable=True),
    sa.Column("payload", Blob, nullable=True),
    sa.UniqueConstraint("thread", "namespace", "message_id", name="locus_messages_id"),
)

# The turn of a thread that is held, and those that wait; or an ended one, which keeps the number
# until the thread is removed. No thread is needed.
sa.Table(
    "locus_turns",
    METADATA,
    sa.Column("tenant", Key(TENANT_LENGTH), primary_key=True),
    sa.Column("thread_id", Key(ID_LENGTH), primary_key=True),
    # The fencing token of the turn that is held, or was held last.
    sa.Column("turn", BigInteger, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    # Grows with each change.
    sa.Column("revision", BigInteger, nullable=False),
    # All of ``versions.turns.Ticket``; or a move of ``sql.sharding``.
    sa.Column("tickets", Json, nullable=False),
)

# The quota of a tenant; without one there is no row.
sa.Table(
    "locus_quotas",
    METADATA,
    sa.Column("tenant", Key(TENANT_LENGTH), primary_key=True),
    sa.Column("limits", Json, nullable=False),
    # All of ``versions.quotas.Usage``.
    sa.Column("usage", Json, nullable=False),
    # Grows with each change.
    sa.Column("revision", BigInteger, nullable=False),
)

# A cross-thread key/value entry.
sa.Table(
    "locus_store",
    METADATA,
    sa.Column("item", BigKey, sa.Identity(), primary_key=True),
    sa.Column("tenant", Key(TENANT_LENGTH), nullable=False),
    # The tuple, as ``items.encode_namespace`` has it.
    sa.Column("namespace", Path(STORE_NAMESPACE_LENGTH), nullable=False),
    sa.Column("key", Key(ID_LENGTH), nullable=False),
    sa.Column("metadata", Json, nullable=True),
    sa.Column("version", BigInteger, server_default=sa.text("1"), nullable=False),
    sa.Column("created_at", Instant, default=make_clock(), nullable=False),
    sa.Column("updated_at", Instant, default=make_clock(), nullable=False),
    sa.Column("expires_at", Instant, nullable=True),
    sa.Column("value", JsonValue, nullable=True),
    # The time to live of the put.
    sa.Column("ttl_seconds", Double, nullable=True),
    sa.UniqueConstraint("tenant", "namespace", "key", name="locus_store_id"),
    _index_of_set("locus_store_expires", "expires_at", "expires_at"),
    sqlite_autoincrement=True,
)

# One call: see ``sql.audit``. The order of the columns matters: PostgreSQL evaluates
# ``transaction_id`` before it draws ``entry``.
sa.Table(
    "locus_audit",
    METADATA,
    # The transaction that wrote the row, where the database numbers them.
    sa.Column("transaction_id", BigInteger, nullable=True),
    sa.Column("entry", BigKey, sa.Identity(), primary_key=True),
    sa.Column("tenant", Key(TENANT_LENGTH), nullable=False),
    sa.Column("recorded_at", Instant, default=make_moment(), nullable=False),
    sa.Column("who", Key(ID_LENGTH), nullable=False),
    # The method of the contract.
    sa.Column("method", PlainText(ID_LENGTH), nullable=False),
    sa.Column("thread_id", Key(ID_LENGTH), nullable=True),
    # Ids and counts as JSON.
    sa.Column("detail", PlainText, nullable=True),
    sa.Column("result", PlainText(ID_LENGTH), nullable=False),
    Index("locus_audit_tenant", "tenant", "entry", info=_ONLY_SERVERS),
)

# A Merkle tree over entries of the audit: ``versions.audit.Seal``.
sa.Table(
    "locus_seals",
    METADATA,
    sa.Column("tenant", Key(TENANT_LENGTH), primary_key=True),
    # Oracle reserves the word that is its key here.
    sa.Column("seal", BigInteger, key="number", primary_key=True, autoincrement=False),
    sa.Column("sealed_at", Instant, nullable=False),
    sa.Column("highest", BigInteger, nullable=False),
    sa.Column("oldest", BigInteger, nullable=False),
    sa.Column("newest", BigInteger, nullable=False),
    sa.Column("root", Digest, nullable=False),
    sa.Column("leaves", Blob, nullable=False),
)

# One fact about this database, verified at open.
sa.Table(
    "locus_settings",
    METADATA,
    sa.Column("name", PlainText(64), primary_key=True),
    sa.Column("value", PlainText(1000), nullable=False),
)

_TABLE_NAMES: Final = [it.removeprefix(DEFAULT_PREFIX) for it in METADATA.tables]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """The Core tables of one prefix in one database schema."""

    prefix: str
    schema: str | None
    user_id_type: UserIdType
    """Of ``threads.user_id``."""

    metadata: sa.MetaData
    threads: sa.Table
    lines: sa.Table
    checkpoints: sa.Table
    segments: sa.Table
    writes: sa.Table
    logs: sa.Table
    messages: sa.Table
    turns: sa.Table
    quotas: sa.Table
    store: sa.Table
    settings: sa.Table
    audit: sa.Table
    seals: sa.Table

    @property
    def version(self) -> str:
        """Name of Alembic's version table."""
        return f"{self.prefix}version"

    @property
    def heads(self) -> str:
        """Name of the view for SQL readers."""
        return f"{self.prefix}heads"

    @property
    def names(self) -> frozenset[str]:
        """The names of all tables and views, the version table included."""
        return frozenset(f"{self.prefix}{name}" for name in (*_TABLE_NAMES, "version", "heads"))

    @property
    def embeddings(self) -> sa.TableClause:
        """The store's table of embeddings, created on request; see ``sql.schema.vectors``."""
        return sa.table(
            f"{self.prefix}embeddings",
            sa.column("item", sa.BigInteger),
            sa.column("part", sa.SmallInteger),
            sa.column("embedding", Embedding()),
            schema=self.schema,
        )


@lru_cache(maxsize=64)
def make_tables(
    prefix: str = DEFAULT_PREFIX, schema: str | None = None, users: UserIdType = "string"
) -> Tables:
    """Return the tables of ``prefix`` in ``schema``; ``METADATA``'s own for the defaults.

    Args:
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
        users: The type of users' ids; see ``sql.schema.user_ids``.
    """
    check_prefix(prefix)
    if schema is not None:
        _check_schema(schema)
    if (prefix, schema, users) == (DEFAULT_PREFIX, None, "string"):
        metadata = METADATA
    else:
        metadata = sa.MetaData()
        for table in METADATA.sorted_tables:
            _copy(table, metadata, prefix, schema)
    found = {table.name.removeprefix(prefix): table for table in metadata.tables.values()}
    if users != "string":
        found["threads"].c.user_id.type = UserId(users)
    return Tables(prefix=prefix, schema=schema, user_id_type=users, metadata=metadata, **found)


def _copy(table: sa.Table, metadata: sa.MetaData, prefix: str, schema: str | None) -> None:
    def renamed(name: object) -> str:
        return prefix + str(name).removeprefix(DEFAULT_PREFIX)

    copy = table.to_metadata(metadata, schema=cast("str", schema), name=renamed(table.name))
    info = {index.name: index.info for index in table.indexes}
    for index in copy.indexes:
        index.info.update(info[index.name])
        index.name = sa.sql.quoted_name(derive_name(renamed(index.name)), quote=None)
    for constraint in copy.constraints:
        if constraint.name is not None:
            constraint.name = derive_name(renamed(constraint.name))
