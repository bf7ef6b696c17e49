"""Hash partitions by line: a table is copied in batches beside writers, and the copy replaces it.

Triggers write the keys of changed rows into a log. Each step is one snapshot: it renews the rows of
the log in the copy, then copies the next lines. When all lines are copied, the copy is *joined*: a
short lock keeps writers out, the last changes are renewed, and from then on the triggers write to
both tables. The names are exchanged once no older snapshot is in use, so that every transaction
finds the same rows in the copy as in the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from locus_store.backends.postgresql.definition import UNLIMITED, isolate
from locus_store.backends.postgresql.dialect import create_partitions
from locus_store.backends.postgresql.failures import (
    CANCELLED,
    MISSING,
    RACES,
    get_sqlstate,
    translate_owner_errors,
)
from locus_store.backends.postgresql.policies import write_literal, write_oid, write_policies
from locus_store.backends.postgresql.row_security import hide, is_secured, secure, see_all_tenants
from locus_store.errors import BackendError, InvalidArgumentError, SchemaError, UnsupportedError
from locus_store.runtime.progress import step as report_step
from locus_store.sql.schema.definition import load_definition_of, make_place, quote
from locus_store.sql.schema.migrations import Target, get_dialect_name, lock, run_on
from locus_store.sql.schema.status import PARTITIONS_SETTING, UNFINISHED_SETTING, read_status
from locus_store.sql.schema.tables import (
    DEFAULT_PREFIX,
    MAX_PARTITIONS,
    PARTITIONED,
    Tables,
    make_partition_name,
    make_tables,
)
from locus_store.sql.schema.user_ids import create_view, read_user_id_type

_BATCH_ROWS: Final = 2_000
"""Copied in a step, at least; a line is copied as a whole."""

_FEW_CHANGES: Final = 200
"""Rows of the log that may be renewed while writers wait."""

_ANALYZED_ROWS: Final = 500
"""Rows of a partition with statistics, on average. By those of a few rows, a plan that a connection
keeps reads a grown partition row by row."""

_ROUNDS: Final = 50
"""Steps that renew rows before a switch is tried, however many rows were changed meanwhile."""

_LOCK_MILLISECONDS: Final = 200
"""A lock is waited for, and other clients wait behind it, for so long; then it is tried again."""

_RENEW_MILLISECONDS: Final = 1_000
"""A statement that renews rows while writers wait may take so long."""

_IDLE_MILLISECONDS: Final = 3_000
"""After so long without a statement, the server ends a transaction, and its locks with it."""

_PATIENCE_SECONDS: Final = 600.0
"""Other transactions may keep a table locked for so long."""

_PAUSE_SECONDS: Final = 0.1
_END: Final = 2**63 - 1
"""In the place of the last line that was copied: all were."""

_JOINED: Final = "joined"

_RETRIED: Final = RACES | MISSING | {CANCELLED}
"""A lock or a snapshot was waited for in vain, or another run has finished."""

_COUNTS: Final = frozenset(2**it for it in range(MAX_PARTITIONS.bit_length()))
_MAX_NAME: Final = 63
_NEW, _LOG, _OLD = "_new", "_log", "_old"
"""Behind the name of a table: its copy, the log of changes, and the table once it is replaced."""

_SQL: Final = dict(
    part.strip().split("\n", 1)
    for part in Path(__file__).with_suffix(".sql").read_text("utf-8").split("--- ")[1:]
)
"""The statements by name."""

_EVENTS: Final = (
    ("INSERT", "REFERENCING NEW TABLE AS renewed"),
    ("UPDATE", "REFERENCING OLD TABLE AS removed NEW TABLE AS renewed"),
    ("DELETE", "REFERENCING OLD TABLE AS removed"),
    ("TRUNCATE", ""),
)
_LOGGING: Final = {
    "guard": "",
    "remove": "INSERT INTO {log} SELECT {keys} FROM removed",
    "renew": "INSERT INTO {log} SELECT {keys} FROM renewed",
}
_WRITING: Final = {
    # The log has a row since the copy was joined. A snapshot without it lacks rows of the copy.
    "guard": """IF NOT EXISTS (SELECT FROM {log}) THEN
    RAISE EXCEPTION 'a table was replaced since the transaction began; run it again'
      USING ERRCODE = 'serialization_failure';
  END IF;""",
    "remove": "DELETE FROM {new} n USING removed d WHERE {same}",
    "renew": "INSERT INTO {new} ({columns}) SELECT {columns} FROM renewed",
}
_OWN_OPERATORS: Final = "SET LOCAL search_path = pg_catalog"
_SETTINGS: Final = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")
"""Each changed row is found by its key, with no statistics."""


def partition(
    target: Target, count: int, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> float | None:
    """Divide the tables of versions into hash partitions by line, beside readers and writers.

    Another run continues one that was cut short. With another count it begins again, and with the
    present count it undoes what was begun.

    Args:
        target: The database; its schema is up to date.
        count: A power of two up to 256; 1 makes plain tables again.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.

    Returns:
        The longest time in seconds that writers waited; ``None``: there was nothing to do.

    Raises:
        InvalidArgumentError: There cannot be so many partitions, or the prefix is too long.
        UnsupportedError: It is not PostgreSQL.
        SchemaError: The database is not up to date, or a table has what the move would lose.
        BackendError: The role does not own the tables, or others kept one locked for too long.
    """
    if isinstance(count, bool) or count not in _COUNTS:
        raise InvalidArgumentError(
            f"{count!r} partitions: the count must be a power of two from 1 to {MAX_PARTITIONS}"
        )
    name = get_dialect_name(target)
    if name != "postgresql":
        raise UnsupportedError(f"{name} has no partitions; only tables of PostgreSQL are divided")
    return run_on(target, partial(_partition, count=count), prefix=prefix, schema=schema)


def _partition(connection: Connection, ours: Tables, *, count: int) -> float | None:
    longest = len(make_partition_name(f"{ours.prefix}checkpoints", MAX_PARTITIONS, MAX_PARTITIONS))
    if longest > _MAX_NAME:
        raise InvalidArgumentError(
            f"prefix={ours.prefix!r} leaves no room for the names of partitions: it must have at "
            f"most {len(ours.prefix) - longest + _MAX_NAME} characters"
        )
    with translate_owner_errors(connection, "a move to partitions"):
        with lock(connection, ours):
            status = read_status(connection, ours)
            if status.settings is None or status.state != "ok":
                raise SchemaError(status.message)
            schema = load_definition_of(connection).find_schema(connection, ours)
            home = make_tables(ours.prefix, schema, status.settings.user_id_type)
            connection.exec_driver_sql(_OWN_OPERATORS)
            moves = [_Move(connection, home, name, count) for name in PARTITIONED]
            if UNFINISHED_SETTING not in status.settings.raw and all(it.is_done() for it in moves):
                return None
            for move in moves:
                move.refuse_exceptions()
            _write_setting(connection, home, UNFINISHED_SETTING, str(count))
        waited = max(move.run() for move in moves)
        with lock(connection, ours):
            _write_setting(connection, home, UNFINISHED_SETTING, None)
    return waited


def _write_setting(connection: Connection, ours: Tables, name: str, value: str | None) -> None:
    settings = ours.settings
    connection.execute(settings.delete().where(settings.c.name == name))
    if value is not None:
        connection.execute(settings.insert().values(name=name, value=value))


class _Move:
    """The move of one table, with its copy, the log of changes and the triggers that write it."""

    def __init__(self, connection: Connection, ours: Tables, name: str, count: int) -> None:
        self.connection = connection
        self.ours = ours
        self.count = count
        self.table = sa.table(f"{ours.prefix}{name}", schema=ours.schema)
        self.copy = sa.table(f"{self.table.name}{_NEW}", schema=ours.schema)
        self.old, self.new, self.log, self.gone = (
            self._quote(f"{self.table.name}{ending}") for ending in ("", _NEW, _LOG, _OLD)
        )
        self.is_secured = is_secured(connection, ours)
        """The tables are under row security, and so is the copy."""
        self.waited = 0.0
        """The longest time in seconds that writers waited."""
        self._until: float | None = None

    def run(self) -> float:
        """Move the table; return the longest time in seconds that writers waited."""
        while True:
            try:
                if self._prepare():
                    return self.waited
                self._catch_up()
                self._join()
                self._await_snapshots()
                self._switch()
            except DBAPIError as error:
                if get_sqlstate(error) not in _RETRIED:
                    raise
                self._pause(error)

    def _pause(self, error: DBAPIError | None = None) -> None:
        """Pause before another attempt, unless there were attempts for too long."""
        self._until = self._until or time.monotonic() + _PATIENCE_SECONDS
        if time.monotonic() > self._until:
            raise BackendError(
                f"{make_place(self.connection).shown}: {self.old} was used by other transactions "
                f"for {_PATIENCE_SECONDS:.0f} s; end them, and run the command again, which "
                "continues"
            ) from error
        with self._begin():
            self._run(f"SELECT pg_sleep({_PAUSE_SECONDS})")

    def is_done(self) -> bool:
        """Return whether the table has its partitions, or does not exist."""
        return self._count(self.old) in {None, self.count}

    def refuse_exceptions(self) -> None:
        """Refuse a table with something that its copy would not have."""
        if self.is_done():
            return
        names = {"oid": write_oid(self.old), "log": write_literal(f"{self.table.name}{_LOG}")}
        names["policies"] = f"ARRAY[{write_policies(self.ours)}]"
        names["is_secured"] = str(self.is_secured).lower()
        heads = write_literal(self._quote(self.ours.heads))
        found = self._run(_SQL["exceptions"].format(**names, heads=heads)).scalars().all()
        if found:
            raise SchemaError(
                f"{make_place(self.connection).shown}: {self.old} has {', '.join(found)}, which a "
                "move to partitions would lose; drop it, and create it again afterwards"
            )

    def _prepare(self) -> bool:
        """Create the copy and the triggers if they are missing; return whether all is done."""
        with self._enter():
            settings = self.ours.settings.c
            recorded = sa.select(settings.value).where(settings.name == UNFINISHED_SETTING)
            wanted = self.connection.scalar(recorded)
            if wanted not in {None, str(self.count)}:
                raise BackendError(f"another run moves the tables to {wanted} partitions meanwhile")
            is_done, copied = self.is_done(), self._count(self.new)
            if copied is not None and (is_done or copied != self.count):
                self._run(f"DROP FUNCTION IF EXISTS {self.log}() CASCADE")
                self._run(f"DROP TABLE IF EXISTS {self.log}, {self.new}")
                copied = None
            if is_done:
                return True
            if copied is None:
                self._create_copy()
        with self._enter(), self._measure():
            if self._count(self.log) is None:
                self._note_changes()
        return False

    def _create_copy(self) -> None:
        options = self._run(_SQL["options"].format(old=write_oid(self.old))).scalar()
        stored = f" WITH ({options})" if options else ""
        like = f"CREATE TABLE {self.new} (LIKE {self.old} INCLUDING ALL)"
        if self.count == 1:
            self._run(like + stored)
        else:
            self._run(f"{like} PARTITION BY HASH (line)")
            for statement in create_partitions(
                self.connection.dialect, self.copy, self.count, self.table.name
            ):
                self._run(statement + stored)
        if self.is_secured:  # only the owner reads it, and gets the policies with the name
            hide(self.connection, self.new)

    def _note_changes(self) -> None:
        """Create the log and its triggers; earlier changes are visible to every later snapshot."""
        names = self._make_names()
        self._run(_SQL["begin log"].format(**names))
        self._mark("-1")
        self._define(_LOGGING, names)
        for event, rows in _EVENTS:
            name = self._quote(f"{self.table.name}{_LOG}_{event.lower()}", None)
            self._run(
                f"CREATE TRIGGER {name} AFTER {event} ON {self.old} {rows} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {self.log}()"
            )

    def _define(self, parts: dict[str, str], names: dict[str, str]) -> None:
        """Define what the triggers do."""
        filled = {part: text.format(**names) for part, text in parts.items()}
        self._run(_SQL["function"].format(**names, **filled))

    def _catch_up(self) -> None:
        """Copy all lines, then renew what was changed meanwhile."""
        is_copied = False
        for _ in range(_ROUNDS):
            while (changes := self._step()) is None:
                is_copied, self._until = True, None
                report_step()
            if is_copied:
                with self._begin():
                    self._limit()
                    rows = str(_ANALYZED_ROWS * self.count)
                    if self._run(_SQL["has rows"].format(new=self.new, rows=rows)).scalar():
                        self._run(f"ANALYZE {self.new}")
                is_copied = False
            elif changes <= _FEW_CHANGES:
                return

    def _step(self) -> int | None:
        """Renew the rows of the log in the copy, then copy the next lines, in one snapshot.

        Returns:
            The number of changes, or ``None`` if there were lines to copy.
        """
        with self._begin("REPEATABLE READ"):
            # Before the snapshot, and only one run at a time.
            self._run(f"LOCK TABLE ONLY {self.new} IN SHARE UPDATE EXCLUSIVE MODE")
            self._limit()
            phase = self._read_phase()
            if phase in {None, _JOINED}:
                return 0
            position, names = int(phase), self._make_names()
            changes = self._renew(names, position)
            if position == _END:
                return changes
            names |= {"after": str(position), "rows": str(_BATCH_ROWS)}
            last = self._run(_SQL["find last"].format(**names)).scalar()
            if last is not None:
                self._run(_SQL["copy"].format(**names, last=last))
            self._mark(_END if last is None else last)
        return None

    def _renew(self, names: dict[str, str], position: int) -> int:
        """Renew the rows of the log, as far as lines were copied; return the number of changes."""
        for name in ("remove logged", "renew logged"):
            self._run(_SQL[name].format(**names, position=position))
        changes: int = self._run(_SQL["clear log"].format(**names)).rowcount
        return changes

    def _mark(self, phase: object) -> None:
        """Record the last line that was copied, or that the copy is joined."""
        self._run(_SQL["mark log"].format(log=self.log, phase=phase))

    def _read_phase(self) -> Any:
        """Return the last line that was copied, or ``joined``; ``None``: there is no log."""
        return self._run(f"SELECT obj_description({write_oid(self.log)}, 'pg_class')").scalar()

    def _join(self) -> None:
        """Let writers write to both tables, which are equal from then on."""
        with self._enter(statement_timeout=_RENEW_MILLISECONDS), self._measure():
            self._run(f"LOCK TABLE {self.old} IN SHARE ROW EXCLUSIVE MODE")
            if self._read_phase() == str(_END):
                names = self._make_names()
                self._renew(names, _END)
                self._define(_WRITING, names)
                self._run(_SQL["mark snapshots"].format(**names))
                self._mark(_JOINED)

    def _await_snapshots(self) -> None:
        """Wait for transactions whose snapshots are older than the last rows of the copy."""
        older: set[str] | None = None
        while older is None or older:
            with self._begin():
                found = set(self._run(_SQL["snapshots"]).scalars())
            older = found if older is None else older & found
            if older:
                self._pause()

    def _switch(self) -> None:
        """Put the copy in the place of the table, if it is joined."""
        with self._enter(), self._measure():
            self._run(f"LOCK TABLE {self.old} IN ACCESS EXCLUSIVE MODE")
            if self._read_phase() != _JOINED:
                return
            self.refuse_exceptions()
            # In one round trip, while all others wait.
            self._run(f"DO $switch$BEGIN {'; '.join(self._make_switch())}; END$switch$")
            if self.table.name == self.ours.checkpoints.name:
                many = None if self.count == 1 else str(self.count)
                _write_setting(self.connection, self.ours, PARTITIONS_SETTING, many)
            name = self.table.name.removeprefix(self.ours.prefix)
            secure(self.connection, self.ours, name, "heads")

    def _make_switch(self) -> Iterator[str]:
        oids = {"old": write_oid(self.old), "new": write_oid(self.new)}
        renamed = self._run(_SQL["renamed"].format(**oids)).all()
        lacking = [name for statement, name in renamed if statement is None]
        if lacking:
            raise SchemaError(
                f"{make_place(self.connection).shown}: the index {lacking[0]} was created while "
                f"{self.old} was copied; drop it, run the command again, and then create it"
            )
        yield from self._run(_SQL["grants"].format(**oids)).scalars().all()
        note = self._run(f"SELECT quote_nullable(obj_description({oids['old']}))").scalar_one()
        yield f"COMMENT ON TABLE {self.new} IS {note}"
        plain = self._quote(self.table.name, None)
        yield f"ALTER TABLE {self.old} RENAME TO {self._quote(self.table.name + _OLD, None)}"
        yield f"ALTER TABLE {self.new} RENAME TO {plain}"
        if self.table.name == self.ours.checkpoints.name:
            users = read_user_id_type(self.connection, self.ours)
            view = create_view(self.connection.dialect, self.ours.prefix, self.ours.schema, users)
            yield view.replace("CREATE", "CREATE OR REPLACE", 1)  # it keeps its rights
        yield f"DROP TABLE {self.gone}, {self.log}"
        yield f"DROP FUNCTION {self.log}()"
        yield from (statement for statement, _ in renamed)

    @contextmanager
    def _begin(self, level: str = "READ COMMITTED") -> Iterator[None]:
        """Begin a transaction that runs no other role's operators; no snapshot is taken yet."""
        with isolate(self.connection, level), self.connection.begin():
            self._run(_OWN_OPERATORS)
            yield

    @contextmanager
    def _enter(self, **limits: int) -> Iterator[None]:
        """Begin a transaction, alone among the migrations, that waits for no lock for long."""
        with lock(self.connection, self.ours):
            self._run(_OWN_OPERATORS)
            limits["lock_timeout"] = _LOCK_MILLISECONDS
            self._limit(idle_in_transaction_session_timeout=_IDLE_MILLISECONDS, **limits)
            yield

    def _limit(self, **limits: int) -> None:
        """Set what is good for the statements of a transaction, as the owner of the table."""
        self._run(UNLIMITED)
        for name, value in (_SETTINGS | limits).items():
            self._run(f"SET LOCAL {name} = {value}")
        owner = self._run(_SQL["owner"].format(oid=write_oid(self.old))).scalar()
        if owner is not None:
            self._run(f"SET LOCAL ROLE {self._quote(owner, None)}")
        see_all_tenants(self.connection, self.ours)

    @contextmanager
    def _measure(self) -> Iterator[None]:
        """Measure how long writers may be waiting."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.waited = max(self.waited, time.monotonic() - started)

    def _run(self, statement: str) -> Any:
        return self.connection.exec_driver_sql(statement)

    def _count(self, name: str) -> int | None:
        """Return the number of partitions, 1 for a plain table; ``None`` if there is no table."""
        found: int | None = self._run(_SQL["count"].format(oid=write_oid(name))).scalar()
        return found

    def _make_names(self) -> dict[str, str]:
        """Return the tables and their columns as the statements name them."""
        oid = write_oid(self.old)
        keys = list(self._run(_SQL["keys"].format(oid=oid)).scalars())
        columns = list(self._run(_SQL["columns"].format(oid=oid)).scalars())
        return {
            "old": self.old,
            "new": self.new,
            "log": self.log,
            "keys": ", ".join(keys),
            "same": " AND ".join(f"n.{it} = d.{it}" for it in keys),
            "columns": ", ".join(columns),
            "theirs": ", ".join(f"n.{it}" for it in columns),
        }

    def _quote(self, name: str, schema: str | None = "") -> str:
        where = self.ours.schema if schema == "" else schema
        return quote(self.connection.dialect, name, where)
