"""All tables, as the newest revision of ``alembic/`` leaves them.

The text ids of a thread stand in ``threads`` and ``lines`` only; the tables that grow carry the
surrogate. There are no foreign keys: every delete names what it removes, and ``writes`` may come
before their checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - the ORM evaluates annotations
from functools import lru_cache
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from locus_store.arguments import check_text
from locus_store.errors import InvalidArgumentError
from locus_store.sql.columns import (
    BigKey,
    Blob,
    Digest,
    Embedding,
    Instant,
    Key,
    LongText,
    Path,
    minute,
    now,
)
from locus_store.sql.json_columns import Json, JsonValue
from locus_store.sql.stored import BigInteger, Double, Integer, SmallInteger, String, Text

DEFAULT_PREFIX: Final = "locus_"
MAX_PREFIX: Final = 20
"""Characters; with the longest index name this stays within PostgreSQL's 63 bytes."""

# Characters. Every index key stays within Oracle's 6,398 bytes and PostgreSQL's 2,704 even when
# each character takes four.
TENANT_LENGTH: Final = 64
ID_LENGTH: Final = 255
STORE_NAMESPACE_LENGTH: Final = 300
NAME_LENGTH: Final = 1000

_PREFIX = re.compile(rf"[a-z_][a-z0-9_]{{0,{MAX_PREFIX - 1}}}")
_TABLE_NAMES = ("threads", "lines", "checkpoints", "writes", "messages", "store", "settings")
_ONLY_POSTGRESQL = {"dialects": ("postgresql",)}


class Base(DeclarativeBase):
    """Root of the ORM classes, which carry the default prefix."""


class Thread(Base):
    """One conversation or run."""

    __tablename__ = "locus_threads"

    thread: Mapped[int] = mapped_column(BigKey, sa.Identity(), primary_key=True)
    tenant: Mapped[str] = mapped_column(Key(TENANT_LENGTH))
    thread_id: Mapped[str] = mapped_column(Key(ID_LENGTH))
    user_id: Mapped[str | None] = mapped_column(Key(ID_LENGTH))
    name: Mapped[str | None] = mapped_column(Key(NAME_LENGTH))
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", Json)
    created_at: Mapped[datetime] = mapped_column(Instant, default=now())
    active_at: Mapped[datetime] = mapped_column(Instant, default=minute())
    """Last activity to the minute: an index on an exact time turns HOT updates off."""
    expires_at: Mapped[datetime | None] = mapped_column(Instant)

    __table_args__ = (
        sa.PrimaryKeyConstraint("thread", name="locus_threads_pk"),
        sa.UniqueConstraint("tenant", "thread_id", name="locus_threads_id"),
        sa.Index(
            "locus_threads_active",
            "tenant",
            "active_at",
            "thread",
            # Always true, and said by the queries that list threads only: without statistics this
            # index looked as good as any to find one thread.
            postgresql_where=sa.text("active_at > '-infinity'"),
        ),
        sa.Index(
            "locus_threads_user",
            "tenant",
            "user_id",
            "active_at",
            "thread",
            sqlite_where=sa.text("user_id IS NOT NULL"),
            postgresql_where=sa.text("user_id IS NOT NULL"),
        ),
        sa.Index(
            "locus_threads_expires",
            "expires_at",
            sqlite_where=sa.text("expires_at IS NOT NULL"),
            postgresql_where=sa.text("expires_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )


class Line(Base):
    """A (tenant, thread, namespace) in one incarnation."""

    __tablename__ = "locus_lines"

    line: Mapped[int] = mapped_column(BigKey, sa.Identity(), primary_key=True)
    tenant: Mapped[str] = mapped_column(Key(TENANT_LENGTH))
    thread_id: Mapped[str] = mapped_column(Key(ID_LENGTH))
    namespace: Mapped[str] = mapped_column(Key(ID_LENGTH))
    head: Mapped[int | None] = mapped_column(BigInteger)
    """Sequence of the checkpoint that a load gives; NULL: no such line for anybody."""
    open_chain: Mapped[int | None] = mapped_column(BigInteger)
    """The chain whose last record is the head; NULL: the next save starts a chain."""
    open_bytes: Mapped[int] = mapped_column(BigInteger, server_default=sa.text("0"))
    """Over the open chain: frame bytes and the overhead of each record."""
    floor: Mapped[int] = mapped_column(BigInteger, server_default=sa.text("0"))
    """Checkpoints with a smaller sequence are hidden and await pruning."""
    last_sequence: Mapped[int] = mapped_column(BigInteger, server_default=sa.text("0"))
    writer: Mapped[str | None] = mapped_column(Key(ID_LENGTH))
    """The load whose descendant moved the head."""
    run: Mapped[str | None] = mapped_column(Key(ID_LENGTH))
    """The run that moved the head."""
    updated_at: Mapped[datetime] = mapped_column(Instant, default=now())

    __table_args__ = (
        sa.PrimaryKeyConstraint("line", name="locus_lines_pk"),
        sa.UniqueConstraint("tenant", "thread_id", "namespace", name="locus_lines_id"),
        # Room on the page for the next version of each row: 89.7 % of updates were HOT without.
        {"sqlite_autoincrement": True, "postgresql_with": {"fillfactor": 50}},
    )


class Checkpoint(Base):
    """One saved version: a record of its chain.

    The long columns stand last: SQLite walks a row's overflow pages to what is behind them.
    """

    __tablename__ = "locus_checkpoints"

    line: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    chain: Mapped[int] = mapped_column(BigInteger)
    """Sequence of the chain's first record."""
    parent: Mapped[int | None] = mapped_column(BigInteger)
    checkpoint_id: Mapped[str] = mapped_column(Key(ID_LENGTH))
    digest: Mapped[bytes] = mapped_column(Digest)
    codec: Mapped[int] = mapped_column(SmallInteger, server_default=sa.text("0"))
    """How the payload is read; 0: JSON frames."""
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", Json)
    labels: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """What the state says of itself: ``agent_id``, ``tags``."""
    created_at: Mapped[datetime] = mapped_column(Instant, default=now())
    text: Mapped[str | None] = mapped_column(Text)
    """What the checkpoint added, for the full-text index; NULL unless that index was made."""
    payload: Mapped[bytes | None] = mapped_column(Blob)

    __table_args__ = (
        sa.PrimaryKeyConstraint("line", "sequence", name="locus_checkpoints_pk"),
        sa.UniqueConstraint("line", "checkpoint_id", name="locus_checkpoints_id"),
        sa.Index(
            "locus_checkpoints_metadata",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
            info=_ONLY_POSTGRESQL,
        ),
        sa.Index(
            "locus_checkpoints_labels",
            "labels",
            postgresql_using="gin",
            postgresql_ops={"labels": "jsonb_path_ops"},
            info=_ONLY_POSTGRESQL,
        ),
    )


class Write(Base):
    """An output of a task that ran before its step's checkpoint was complete."""

    __tablename__ = "locus_writes"

    line: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    checkpoint_id: Mapped[str] = mapped_column(Key(ID_LENGTH), primary_key=True)
    task_id: Mapped[str] = mapped_column(Key(ID_LENGTH), primary_key=True)
    idx: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    channel: Mapped[str] = mapped_column(Key(ID_LENGTH))
    type: Mapped[str | None] = mapped_column(Key(ID_LENGTH))
    task_path: Mapped[str | None] = mapped_column(Text)
    basis: Mapped[int | None] = mapped_column(BigInteger)
    """Sequence of the checkpoint that the payload's frames are against; NULL: whole."""
    created_at: Mapped[datetime] = mapped_column(Instant, default=now())
    payload: Mapped[bytes | None] = mapped_column(Blob)

    __table_args__ = (
        sa.PrimaryKeyConstraint("line", "checkpoint_id", "task_id", "idx", name="locus_writes_pk"),
    )


class LoggedMessage(Base):
    """One entry of a thread's message log."""

    __tablename__ = "locus_messages"

    thread: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    message_id: Mapped[str] = mapped_column(Key(ID_LENGTH))
    role: Mapped[str] = mapped_column(Key(ID_LENGTH))
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", Json)
    created_at: Mapped[datetime] = mapped_column(Instant, default=now())
    text: Mapped[str | None] = mapped_column(LongText)
    payload: Mapped[bytes | None] = mapped_column(Blob)

    __table_args__ = (
        sa.PrimaryKeyConstraint("thread", "sequence", name="locus_messages_pk"),
        sa.UniqueConstraint("thread", "message_id", name="locus_messages_id"),
    )


class StoreItem(Base):
    """A cross-thread key/value entry."""

    __tablename__ = "locus_store"

    item: Mapped[int] = mapped_column(BigKey, sa.Identity(), primary_key=True)
    tenant: Mapped[str] = mapped_column(Key(TENANT_LENGTH))
    namespace: Mapped[str] = mapped_column(Path(STORE_NAMESPACE_LENGTH))
    """The tuple, as ``items.encode_namespace`` has it."""
    key: Mapped[str] = mapped_column(Key(ID_LENGTH))
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", Json)
    version: Mapped[int] = mapped_column(BigInteger, server_default=sa.text("1"))
    created_at: Mapped[datetime] = mapped_column(Instant, default=now())
    updated_at: Mapped[datetime] = mapped_column(Instant, default=now())
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    value: Mapped[Any] = mapped_column(JsonValue, nullable=True)
    ttl_seconds: Mapped[float | None] = mapped_column(Double)
    """What it was put with."""

    __table_args__ = (
        sa.PrimaryKeyConstraint("item", name="locus_store_pk"),
        sa.UniqueConstraint("tenant", "namespace", "key", name="locus_store_id"),
        sa.Index(
            "locus_store_expires",
            "expires_at",
            sqlite_where=sa.text("expires_at IS NOT NULL"),
            postgresql_where=sa.text("expires_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )


class Setting(Base):
    """One fact about this database, verified at open."""

    __tablename__ = "locus_settings"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(1000))

    __table_args__ = (sa.PrimaryKeyConstraint("name", name="locus_settings_pk"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The Core tables of one prefix in one database schema."""

    prefix: str
    schema: str | None
    metadata: sa.MetaData
    threads: sa.Table
    lines: sa.Table
    checkpoints: sa.Table
    writes: sa.Table
    messages: sa.Table
    store: sa.Table
    settings: sa.Table

    @property
    def version(self) -> str:
        """Name of Alembic's version table."""
        return f"{self.prefix}version"

    @property
    def heads(self) -> str:
        """Name of the view for people who write SQL."""
        return f"{self.prefix}heads"

    @property
    def names(self) -> frozenset[str]:
        """Every table and view that the migrations make, the version table included."""
        return frozenset(f"{self.prefix}{name}" for name in (*_TABLE_NAMES, "version", "heads"))

    @property
    def embeddings(self) -> sa.TableClause:
        """Of the store's items, made on request; see ``sql.vectors``."""
        return sa.table(
            f"{self.prefix}embeddings",
            sa.column("item", sa.BigInteger),
            sa.column("part", sa.SmallInteger),
            sa.column("embedding", Embedding()),
            schema=self.schema,
        )


def check_prefix(prefix: str) -> str:
    """The prefix itself; ``InvalidArgumentError`` where it cannot start a table's name."""
    if not _PREFIX.fullmatch(prefix):
        raise InvalidArgumentError(
            f"table prefix {prefix!r}: it must match [a-z_][a-z0-9_]* and have at most"
            f" {MAX_PREFIX} characters, for example {DEFAULT_PREFIX!r}"
        )
    return prefix


@lru_cache(maxsize=64)
def tables(prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Tables:
    """The tables of ``prefix`` in ``schema``; the ORM classes' own for the defaults."""
    check_prefix(prefix)
    if schema is not None:
        check_text("schema", schema, minimum=0)
    if prefix == DEFAULT_PREFIX and schema is None:
        metadata = Base.metadata
    else:
        metadata = sa.MetaData()
        for table in Base.metadata.sorted_tables:
            _copy(table, metadata, prefix, schema)
    found = {table.name.removeprefix(prefix): table for table in metadata.tables.values()}
    return Tables(prefix=prefix, schema=schema, metadata=metadata, **found)


def _copy(table: sa.Table, metadata: sa.MetaData, prefix: str, schema: str | None) -> None:
    def renamed(name: object) -> str:
        return prefix + str(name).removeprefix(DEFAULT_PREFIX)

    copy = table.to_metadata(metadata, schema=cast("str", schema), name=renamed(table.name))
    info = {index.name: index.info for index in table.indexes}
    for index in copy.indexes:
        index.info.update(info[index.name])
        index.name = sa.sql.quoted_name(renamed(index.name), quote=None)
    for constraint in copy.constraints:
        if constraint.name is not None:
            constraint.name = renamed(constraint.name)
