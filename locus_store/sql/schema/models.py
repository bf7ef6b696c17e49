"""The tables as ORM classes, for programs that read them through SQLAlchemy's ``Session``.

The library itself runs on the Core tables of ``schema`` and does not import this module. Write
through a checkpointer, a saver or a store only: payloads are compressed differences with digests.
"""

from sqlalchemy.orm import DeclarativeBase

from locus_store.sql.schema.tables import METADATA, make_tables

_tables = make_tables()


class Base(DeclarativeBase):
    """Root of the ORM classes, which carry the default prefix."""

    metadata = METADATA


class ThreadRow(Base):
    """A conversation or run."""

    __table__ = _tables.threads
    __mapper_args__ = {"properties": {"metadata_": _tables.threads.c.metadata}}  # noqa: RUF012


class LineRow(Base):
    """A (tenant, thread, namespace) in one incarnation."""

    __table__ = _tables.lines


class CheckpointRow(Base):
    """A version: one record of its chain."""

    __table__ = _tables.checkpoints
    __mapper_args__ = {"properties": {"metadata_": _tables.checkpoints.c.metadata}}  # noqa: RUF012


class SegmentRow(Base):
    """The payloads of some records of a chain."""

    __table__ = _tables.segments


class WriteRow(Base):
    """A pending write."""

    __table__ = _tables.writes


class LogRow(Base):
    """The message log of a thread and namespace."""

    __table__ = _tables.logs


class MessageRow(Base):
    """An entry of a message log."""

    __table__ = _tables.messages
    __mapper_args__ = {"properties": {"metadata_": _tables.messages.c.metadata}}  # noqa: RUF012


class TurnRow(Base):
    """The turn of a thread that is held, and those that wait."""

    __table__ = _tables.turns


class QuotaRow(Base):
    """The quota of a tenant, and its use."""

    __table__ = _tables.quotas


class StoreItemRow(Base):
    """A value of the long-term store."""

    __table__ = _tables.store
    __mapper_args__ = {"properties": {"metadata_": _tables.store.c.metadata}}  # noqa: RUF012


class SettingRow(Base):
    """A fact about the database, verified when it is opened."""

    __table__ = _tables.settings


class AuditRow(Base):
    """A call that was recorded."""

    __table__ = _tables.audit


class SealRow(Base):
    """A Merkle tree over entries of the audit."""

    __table__ = _tables.seals
