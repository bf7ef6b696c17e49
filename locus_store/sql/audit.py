"""The audit trail of a SQL database: a row for each call, and seals over the rows.

With the option ``audit``, the objects of a storage are of a subclass whose methods note what is
called (``record_calls``). The transaction of the call then writes the row. The row of a call that
is refused, or that reads, has a transaction of its own.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial, wraps
from time import monotonic
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    SchemaError,
)
from locus_store.runtime.stepping import run_in_thread
from locus_store.sql.columns.types import make_clock
from locus_store.sql.schema.tables import check_prefix, make_tables
from locus_store.sql.threads.listing import RunsQueries
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import Tenancy, compile_statements
from locus_store.types import Removed, Written
from locus_store.types.acting import get_actor
from locus_store.types.arguments import check_text
from locus_store.types.items import Change
from locus_store.types.messages import LogChanged
from locus_store.versions.audit import (
    LAST,
    MOST_SEALED,
    PRUNED,
    Audited,
    AuditEntry,
    Seal,
    Window,
    make_leaves,
)
from locus_store.versions.sharding import HIDDEN_TENANT

logger = logging.getLogger(__name__)

SEAL_SECONDS: Final = 60.0
"""The least time between two seals of a tenant's entries by one process."""

DONE: Final = "done"

UNANSWERED: Final = (ConnectionFailedError, BackendError, SchemaError)
"""Errors of a storage that cannot be reached or written: they refuse nothing."""


@dataclass(slots=True)
class Audit:
    """The recording of one storage, shared by the objects of all its tenants."""

    who: str
    """Calls outside of ``acting_as``."""

    has_reads: bool
    next_seals: dict[str, float] = field(default_factory=dict)
    """The time from which a tenant's entries are sealed."""


def make_audit(options: Mapping[str, Any]) -> Audit | None:
    """Return the recording that options ask for.

    Raises:
        InvalidArgumentError: They contradict each other, or the name is not valid.
    """
    who, has_reads = options["audit"], options["audit_reads"]
    if who is not None:
        check_text("audit", who)
        return Audit(who, has_reads)
    if has_reads:
        raise InvalidArgumentError("audit_reads needs audit=: the name to record")
    return None


@dataclass(slots=True)
class RecordedCall:
    """A call of a method, as far as its row says."""

    audit: Audit
    who: str
    method: str
    thread_id: str | None
    detail: dict[str, Any]

    def record(
        self, connection: Connection, tenancy: Tenancy, result: object, thread_id: str | None = None
    ) -> None:
        """Write the row of a call in its transaction, if it has changed anything."""
        if not _has_changed(result):
            return
        is_side = isinstance(result, Written) and result.outcome == "side"
        detail = {**self.detail, **_describe_result(result)}
        made = RecordedCall(self.audit, self.who, self.method, thread_id or self.thread_id, detail)
        made.write(connection, tenancy, "side" if is_side else DONE)

    def make_values(self) -> dict[str, Any]:
        """Return the values of a statement that does the work of the call and records it."""
        return {"who": self.who, "detail": _dump(self.detail)}

    def write(self, connection: Connection, tenancy: Tenancy, result: str) -> None:
        """Write the row of a call."""
        row = {
            "tenant": tenancy.tenant,
            "who": self.who,
            "method": self.method,
            "thread_id": self.thread_id,
            "detail": _dump(self.detail),
            "result": result,
        }
        compile_statements(tenancy.tables, connection.dialect).new_entry.run(connection, row)


def _has_changed(result: object) -> bool:
    if isinstance(result, Removed):
        return result.existed or result.versions > 0
    if isinstance(result, LogChanged):
        return result.revision > 0
    return result is None or bool(result)


def _dump(detail: Mapping[str, Any]) -> str | None:
    """Return ids and counts as JSON in ASCII."""
    if not detail:
        return None
    with suppress(TypeError):  # half of a UTF-16 pair, or a number of more than 64 bits
        found = orjson.dumps(detail)
        if found.isascii():
            return found.decode()
    return _encode(detail)


_encode: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode


_call: ContextVar[RecordedCall | None] = ContextVar("locus_store_audited_call", default=None)


def get_call(audit: Audit | None) -> RecordedCall | None:
    """Return the call that is under way on a storage, if it is recorded."""
    call = _call.get()
    return call if call is not None and call.audit is audit else None


OF_THREADS: Final = (
    *("commit", "commit_on", "store_writes", "remove", "remove_thread", "copy_thread", "restore"),
    *("prune", "forget_user", "forget_where", "vacuum_report", "renew", "expire", "put_facts"),
    *("clear_versions", "replace_thread", "rewrite_thread"),
)
"""Methods of a backend that write, turns excepted."""

READS_OF_THREADS: Final = (
    *("fetch", "fetch_head", "history", "version", "recent", "heads", "newest", "contents", "find"),
    *("query", "tagged", "writes_of", "list_writes", "read_thread", "records", "namespaces"),
    *("scan", "has_thread", "find_threads", "facts_of", "find_facts", "list_turns"),
    "find_statuses",
)
OF_STORE: Final = ("apply", "apply_on", "clear", "renew", "sweep")
READS_OF_STORE: Final = ("read", "page", "recent", "nearest", "vectors_of", "namespaces")
OF_MESSAGES: Final = ("change", "drop")
READS_OF_MESSAGES: Final = ("look", "look_at_contents", "find_logs", "find_heads")

_JOINED: Final = ("commit_on", "apply_on")
"""Their transaction is the caller's: a second one beside it might wait for it for ever."""

_IDS: Final = ("namespace", "checkpoint_id", "checkpoint_ids", "source_thread_id", "key")
_SUBJECTS: Final = ("change", "put", "thread", "wanted")
"""Parameters that hold the thread's id, and others."""


def record_calls(
    obj: Any, audit: Audit | None, writes: tuple[str, ...], reads: tuple[str, ...]
) -> None:
    """Make an object record its calls, if they are recorded."""
    if audit is not None:
        kind: Any = type(obj)
        obj.__class__ = _make_recording(kind, writes, reads if audit.has_reads else ())


@cache
def _make_recording(kind: Any, writes: tuple[str, ...], reads: tuple[str, ...]) -> type:
    both = *((it, False) for it in writes), *((it, True) for it in reads)
    methods = {name: _record(getattr(kind, name), reads=is_read) for name, is_read in both}
    about = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**about, **methods})


def _record(method: Callable[..., Awaitable[Any]], *, reads: bool) -> Callable[..., Awaitable[Any]]:
    names = [*inspect.signature(method).parameters][1:]
    name = method.__name__

    @wraps(method)
    async def run_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend = getattr(self, "backend", self)
        database = backend.shared.database
        outer = get_call(database.audit)
        if (outer and reads) or database.tenant.startswith(HIDDEN_TENANT):  # of a move
            return await method(self, *args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        thread_id, detail = _describe(given)
        more = outer.detail if outer else {}
        call = backend.make_call(outer.method if outer else name, thread_id, more | detail)
        token = _call.set(call)
        try:
            result = await method(self, *args, **kwargs)
        except LocusStoreError as exc:
            if outer is None and name not in _JOINED and not isinstance(exc, UNANSWERED):
                await backend.record_refusal(call, type(exc).__name__)
            raise
        finally:
            _call.reset(token)
        if reads:
            await backend.record_alone(call, DONE)
        backend.seal_soon()
        return result

    return run_method


def _describe(arguments: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the thread and the ids among a method's arguments; never a value."""
    if (save := arguments.get("save")) is not None:
        detail = {"checkpoint_id": save.checkpoint_id}
        return save.thread_id, detail | ({"namespace": save.namespace} if save.namespace else {})
    subject = next((arguments[it] for it in _SUBJECTS if it in arguments), None)
    found = {name: arguments.get(name) or getattr(subject, name, None) for name in _IDS}
    detail = {name: value for name, value in found.items() if value}
    if changes := arguments.get("changes"):
        detail["items"] = [[*it.namespace, it.key] for it in changes if isinstance(it, Change)]
    if names := arguments.get("names"):
        detail["items"] = [[*namespace, key] for namespace, key in names]
    if puts := getattr(subject, "puts", None):
        detail["messages"] = len(puts)
    if also := getattr(subject, "also", None):
        detail["also"] = [[it.thread_id, it.namespace] for it in also]
    if cut := getattr(subject, "cut", None):
        detail["cut"] = cut.kind
    thread_id = arguments.get("thread_id") or arguments.get("dest_thread_id")
    return thread_id or getattr(subject, "thread_id", None), detail


def _describe_result(result: object) -> dict[str, Any]:
    if isinstance(result, Written):
        return {"checkpoint_id": result.checkpoint_id}
    if isinstance(result, Removed):
        return {"removed": result.versions}
    if isinstance(result, list):
        return {"threads" if isinstance(result[0], str) else "versions": result}
    if isinstance(result, int) and not isinstance(result, bool):
        return {"count": result}
    return {}


def render_grants(role: str, *, prefix: str, schema: str | None) -> str:
    """Return the SQL that lets a role of PostgreSQL read the entries and seals, and open them."""
    tables = make_tables(check_prefix(prefix, "postgresql"), schema)
    preparer = sa.URL.create("postgresql").get_dialect()().identifier_preparer
    version = sa.table(tables.version, schema=schema)
    readable = (tables.audit, tables.seals, tables.settings, version)
    names = ", ".join(preparer.format_table(it) for it in readable)
    quoted = preparer.quote_identifier(role)
    usage = f"GRANT USAGE ON SCHEMA {preparer.quote(schema)} TO {quoted};\n" if schema else ""
    return f"{usage}GRANT SELECT ON {names} TO {quoted};\n"


class SqlAudit(RunsQueries):
    """The part of a backend that records calls by themselves, and seals entries."""

    def make_call(self, method: str, thread_id: str | None, detail: dict[str, Any]) -> RecordedCall:
        """Return a call by the one who acts now."""
        audit = self._database.audit or Audit("locus-store", has_reads=False)
        return RecordedCall(audit, get_actor() or audit.who, method, thread_id, detail)

    async def record_alone(self, call: RecordedCall, result: str) -> None:
        """Write the row of a call in a transaction of its own."""
        database = self._database

        def write(connection: Connection) -> None:
            database.enter_tenant(connection)
            call.write(connection, database.tenancy, result)

        with self._translating:
            await self._runner.write(write)

    async def record_refusal(self, call: RecordedCall, result: str) -> None:
        """Write the row of a call that was refused; a failure is logged."""
        try:
            check_text("thread_id", call.thread_id or "-")
        except InvalidArgumentError:  # for which the call was refused
            call = replace(call, thread_id=None, detail={})
        try:
            await self.record_alone(call, result)
        except LocusStoreError as exc:
            logger.warning("the refusal of a call of %r is not recorded: %s", call.method, exc)

    async def refuse_call(self, method: str, result: str) -> None:
        """Record a call that was refused before it came here, if calls are recorded."""
        if self._database.audit is not None:
            await self.record_refusal(self.make_call(method, None, {}), result)

    def seal_soon(self) -> None:
        """Seal the entries beside the calls, if it is time."""
        audit, tenant = self._database.audit, self._database.tenant
        if audit is not None and monotonic() >= audit.next_seals.get(tenant, 0.0):
            audit.next_seals[tenant] = monotonic() + SEAL_SECONDS
            self._background.get().submit(("audit", tenant), self._seal)

    async def _seal(self) -> None:
        try:
            await self.seal_entries()
        except Exception as exc:  # noqa: BLE001  (the next time has the same entries)
            logger.warning("the audit of %r was not sealed: %s", self._database.tenant, exc)

    async def seal_entries(self) -> int:
        """Seal all entries that are committed now; return how many that were."""
        sealed, is_full = 0, True
        while is_full and (found := await self._write(find_unsealed)):
            before, oldest, entries = found
            leaves = await run_in_thread(partial(make_leaves, entries))
            highest = max(entries[-1].entry, before.highest if before else 0)
            put = partial(put_seal, before=before, oldest=oldest, highest=highest, leaves=leaves)
            if await self._write(put):  # else another process has sealed some of them
                sealed += len(entries)
                is_full = len(entries) == MOST_SEALED
        return sealed

    async def find_prunable(self, before: datetime) -> int:
        """Return the last entry such that seals made before a time have all up to it; 0: none."""
        return await self._query(lambda it: _find_prunable(it, before), self._runner)

    async def prune_entries(self, upto: int) -> int:
        """Delete the entries up to one of ``find_prunable``; return how many those were.

        The seals stay. An entry says so first, so that an interrupted run may be repeated.
        """
        await self.record_alone(self.make_call(PRUNED, None, {"upto": upto}), DONE)
        await self.seal_entries()
        count = 0
        while deleted := await self._write(lambda it: _delete_entries(it, upto)):
            count += deleted
        return count

    async def list_seals(self, after: int, limit: int) -> list[Seal]:
        return await self._query(lambda it: _list_seals(it, after, limit), self._runner)

    async def list_entries(self, after: int, upto: int, limit: int) -> list[AuditEntry]:
        return await self._query(lambda it: _list_entries(it, after, upto, limit), self._runner)

    async def read_audited(self) -> Audited:
        return await self._query(lambda it: Audited(it.tenancy.store, it.tenant), self._runner)

    async def read_last_seal(self) -> Seal | None:
        return await self._query(_read_last_seal, self._runner)

    async def list_audited(self) -> list[str]:
        """Return the tenants that have entries or seals."""

        def read(repository: Repository) -> list[str]:
            repository.see_all_tenants()
            tables = repository.tables
            found = (sa.select(it.c.tenant) for it in (tables.audit, tables.seals))
            return sorted(repository.connection.execute(sa.union(*found)).scalars())

        return await self._query(read, self._runner)


def _list_seals(repository: Repository, after: int, limit: int) -> list[Seal]:
    c = repository.tables.seals.c
    query = _select_seals(repository).where(c.number > after).order_by(c.number)
    rows = repository.connection.execute(query.limit(limit))
    return [Seal(**row._mapping) for row in rows]  # noqa: SLF001  (of the interface)


def _read_last_seal(repository: Repository, below: int = LAST) -> Seal | None:
    number = repository.tables.seals.c.number
    query = _select_seals(repository).where(number < below).order_by(number.desc())
    row = repository.connection.execute(query.limit(1)).first()
    return None if row is None else Seal(**row._mapping)  # noqa: SLF001  (of the interface)


def _select_seals(repository: Repository) -> sa.Select[Any]:
    c = repository.tables.seals.c
    return sa.select(*(it.label(it.key) for it in c)).where(c.tenant == repository.tenant)


def _list_entries(repository: Repository, after: int, upto: int, limit: int) -> list[AuditEntry]:
    c = repository.tables.audit.c
    query = sa.select(*(c[name] for name in AuditEntry._fields)).where(
        c.tenant == repository.tenant, c.entry > after, c.entry <= upto
    )
    rows = repository.connection.execute(query.order_by(c.entry).limit(limit))
    return [AuditEntry(*row) for row in rows]


def _find_prunable(repository: Repository, before: datetime) -> int:
    c, tenant = repository.tables.seals.c, repository.tenant
    kept = sa.select(sa.func.min(c.number)).where(c.tenant == tenant, c.sealed_at >= before)
    first = repository.connection.execute(kept).scalar() or LAST
    if (last := _read_last_seal(repository, first)) is None:
        return 0
    # What a seal before that one lacks has ended by then, and it has all of it.
    whole = c.tenant == tenant, c.number <= last.number, c.newest <= last.oldest
    upto = repository.connection.execute(sa.select(sa.func.max(c.highest)).where(*whole)).scalar()
    return upto if upto and _list_entries(repository, 0, upto, 1) else 0


def _delete_entries(repository: Repository, upto: int) -> int:
    """Delete the first entries up to one; return how many those were."""
    found = _list_entries(repository, 0, upto, MOST_SEALED)
    table, end = repository.tables.audit, found[-1].entry if found else 0
    mine = table.c.tenant == repository.tenant, table.c.entry <= end
    repository.connection.execute(table.delete().where(*mine))
    return len(found)


def find_unsealed(repository: Repository) -> tuple[Seal | None, int, list[AuditEntry]] | None:
    """Return the last seal, the oldest transaction, and entries that no seal has; or ``None``."""
    oldest = repository.read_oldest_transaction()
    window = _read_window(repository)
    found: list[AuditEntry] = []
    after = window.floor
    while len(found) <= MOST_SEALED and (
        page := _list_entries(repository, after, LAST, MOST_SEALED)
    ):
        found += [one for one in page if not window.has(one.entry)]
        after = page[-1].entry
    rest = found[MOST_SEALED:]
    if rest and window.last and rest[0].entry <= window.last.highest:
        oldest = window.last.oldest  # these are late for the next seal, too
    return (window.last, oldest, found[:MOST_SEALED]) if found else None


def _read_window(repository: Repository) -> Window:
    """Return the last seals, as far as the next one depends on them."""
    c, window, last = repository.tables.seals.c, Window(), _read_last_seal(repository)
    if last is not None:
        ended = sa.select(sa.func.max(c.number)).where(
            c.tenant == repository.tenant, c.newest <= last.oldest
        )
        first = repository.connection.execute(ended).scalar() or 1
        while window.last is None or window.last.number < last.number:
            after = window.last.number if window.last else first - 1
            for seal in _list_seals(repository, after, 1):
                window.add(seal)
    return window


def put_seal(
    repository: Repository, *, before: Seal | None, oldest: int, highest: int, leaves: bytes
) -> bool:
    """Put a seal behind another one; ``False``: another process has done so."""
    c = repository.tables.seals.c
    last = sa.select(sa.func.max(c.number)).where(c.tenant == repository.tenant)
    number = before.number if before else 0
    if (repository.connection.execute(last).scalar() or 0) != number:
        return False
    seal = Seal(
        tenant=repository.tenant,
        number=number + 1,
        sealed_at=repository.connection.execute(sa.select(make_clock())).scalar_one(),
        highest=highest,
        oldest=oldest,
        newest=repository.read_own_transaction(),
        leaves=leaves,
    )
    seal = replace(seal, root=seal.compute_root(before))
    values = {name: getattr(seal, name) for name in c.keys()}  # noqa: SIM118  (no dict)
    repository.connection.execute(repository.tables.seals.insert().values(**values))
    return True
