"""Quotas of tenants in a SQL database: the row of a tenant, and what a process knows of it.

Methods that store something are decorated with ``limit_calls``. A call of a tenant without a quota
passes by a comparison of two times.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from time import monotonic
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import sqlalchemy as sa

from locus_store.backend import LimitsTenants
from locus_store.errors import InvalidArgumentError, LocusStoreError, QuotaError
from locus_store.runtime.recent import Recent
from locus_store.sql.audit import UNANSWERED
from locus_store.sql.columns.types import make_clock
from locus_store.sql.threads.listing import RunsQueries
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statuses import count_stored
from locus_store.types import ArchivedThread, Save
from locus_store.types.items import Change, Put
from locus_store.types.messages import LogChange
from locus_store.types.tenants import Quota, QuotaUse
from locus_store.types.thread_info import PutThread
from locus_store.values.encoding import encode
from locus_store.versions import PutWrites
from locus_store.versions.quotas import (
    ROW_BYTES,
    SAVES,
    STORED,
    UNNOTICED_SECONDS,
    USE_SECONDS,
    Amounts,
    Count,
    LeaseAnswer,
    LeaseRequest,
    Usage,
    load_usage,
    take_lease,
)

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

QUOTAS_SETTING: Final = "quotas"
"""Row of ``settings`` that says that some tenant has, or had, a quota."""

LOOK_SECONDS: Final = 60.0
"""A process looks for a first quota of the database, and of a tenant, after this time."""

MOST_TENANTS: Final = 10_000
"""Tenants whose quotas a process remembers."""


@dataclass(slots=True)
class Charge:
    """Amounts that a call may store, and later those that it has stored."""

    need: Amounts
    threads: Collection[str] = ()
    """Threads that the call may create."""

    is_new: Callable[[Any], bool] = lambda _: False
    """Says of the result whether the call may have created a thread."""

    source: str | None = None
    """The thread that is copied."""

    connection: object = None
    """The caller's transaction, if the call is a part of it."""

    is_due: bool = False
    """Of a tool's call that was made: refused only if the tenant exceeds ``bytes`` already."""

    appended: int = 0
    """Bytes of the version, as a transaction has written it."""

    opened: int = 0
    """Threads that the transaction has created."""

    lease: _Lease | None = None

    def note_written(self, threads: int, size: int = 0) -> None:
        """Note what a transaction has written; refuse more threads than the call has taken."""
        self.appended = size
        if self.threads:
            self.opened = threads
            if threads > self.need["threads"]:
                raise MoreThreadsError


class MoreThreadsError(Exception):
    """A call creates more threads than it has taken; its transaction is undone and repeated."""


def _charge(sizes: Sequence[int], **about: Any) -> Charge:
    threads, stored = len(about.get("threads", ())), sum(sizes) + len(sizes) * ROW_BYTES
    return Charge({"threads": threads, "bytes": stored, SAVES: 1}, **about)


def _measure_json(value: Any) -> int:
    return len(encode(value)) if value else 0


def measure_save(save: Save, connection: object = None) -> Charge:
    """Return the charge of a version."""
    frames = None if save.basis is None else save.change.frames
    size = len(save.change.to_payload() if frames is None else frames)
    charge = _charge(
        [size + _measure_json(save.metadata) + _measure_json(save.labels)],
        threads=[save.thread_id],
        is_new=lambda written: written.mark.sequence == 1,
        connection=connection,
    )
    if save.basis is not None or save.thread_must_exist:
        charge.need["threads"] = 0
    return charge


def measure_writes(put: PutWrites) -> Charge:
    """Return the charge of pending writes."""
    return _charge([len(it.payload) for it in put.writes], is_due=put.must_exist == "task")


def measure_change(change: LogChange) -> Charge | None:
    """Return the charge of a change of message logs; ``None`` if it only removes some."""
    puts = change.get_all_puts()
    if not puts:
        return None
    return _charge(
        [
            len(put.payload) + len((put.text or "").encode()) + _measure_json(put.metadata)
            for put in puts
        ],
        threads={it.thread_id for it in change.split() if it.puts},
    )


def measure_items(changes: Sequence[Change], connection: object = None) -> Charge | None:
    """Return the charge of changes of items; ``None`` if they only remove or reseal some."""
    sizes = [it.json_bytes for it in changes if isinstance(it, Put) and not it.is_resealed]
    return _charge(sizes, connection=connection) if sizes else None


def measure_facts(put: PutThread) -> Charge:
    """Return the charge of the facts of a thread."""
    return _charge([_measure_json(put.metadata)], threads=[put.thread_id], is_new=lambda _: True)


def measure_thread(thread: ArchivedThread) -> Charge:
    """Return the charge of a thread that is restored."""
    sizes = [len(it.payload or b"") for it in thread.messages]
    for line in thread.lines:
        sizes += [len(it.payload) + _measure_json(it.metadata) for it in line.records]
        sizes += [len(it.write.payload) for it in line.writes]
    return _charge(sizes, threads=[thread.thread_id], is_new=lambda _: True)


def measure_copy(source_thread_id: str, dest_thread_id: str, thread: Any = None) -> Charge:
    """Return the charge of a copy; within a database, it is measured when there is a quota."""
    if thread is not None:
        return replace(measure_thread(thread), threads=[dest_thread_id], is_new=bool)
    return _charge([], threads=[dest_thread_id], is_new=bool, source=source_thread_id)


charged_call: ContextVar[Charge | None] = ContextVar("locus_store_charge", default=None)
"""The charge of the call that is under way, if its tenant has a quota."""


def limit_calls(charge: Callable[..., Charge | None]) -> Callable[[Method], Method]:
    """Return a decorator of a method that stores something, of a backend, store or message log.

    Args:
        charge: Returns the charge of a call; ``None``: no quota refuses it.
    """

    def decorate(method: Method) -> Method:
        @wraps(method)
        def run_method(self: Any, *args: Any, **kwargs: Any) -> Any:
            backend: SqlQuotas = getattr(self, "backend", self)
            if backend.is_unlimited() or charged_call.get() is not None:
                return method(self, *args, **kwargs)
            call, found = partial(method, self, *args, **kwargs), charge(*args, **kwargs)
            return call() if found is None else backend.run_limited(found, call)

        return cast("Method", run_method)

    return decorate


@dataclass(slots=True)
class _Lease:
    """A lease of this process."""

    key: str
    granted: Amounts
    left: Amounts
    spent: Amounts
    ends: float
    minute_ends: float
    calls: int = 0
    """Under way."""

    def has(self, need: Amounts, at: float) -> bool:
        """Return whether a call may take what it needs."""
        if at >= self.ends or (SAVES in self.left and at >= self.minute_ends):
            return False
        return all(need.get(name, 0) <= left for name, left in self.left.items())

    def take(self, charge: Charge) -> None:
        """Take what a call needs."""
        charge.lease = self
        self.calls += 1
        self.add(charge.need, -1)

    def add(self, amounts: Amounts, sign: int) -> None:
        """Change what is left."""
        for name in self.left:
            self.left[name] += sign * amounts.get(name, 0)

    def pass_saves(self, other: _Lease) -> None:
        """Leave the saves of this minute, which no report returns, to the next lease."""
        if SAVES in self.left and SAVES in other.left and monotonic() < self.minute_ends:
            other.left[SAVES] += self.left[SAVES]
            self.left[SAVES] = 0


class TenantQuota:
    """The quota of a tenant, as one process knows it; used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: _Lease | None = None
        self._ended: list[_Lease] = []
        self._free_until = 0.0
        """There is no quota until then."""

    def take(self, charge: Charge, *, exceeds: bool = False) -> bool:
        """Take what a call needs, or more than is left; ``False``: a lease is needed first."""
        with self._lock:
            if (at := monotonic()) < self._free_until:
                return True
            if self._lease is None or not (exceeds or self._lease.has(charge.need, at)):
                return False
            self._lease.take(charge)
            return True

    def make_request(self, need: Amounts, *, is_exact: bool) -> LeaseRequest:
        """Return a request for a lease, which reports the earlier ones."""
        with self._lock:
            known = self._ended if self._lease is None else [*self._ended, self._lease]
            spent = {it.key: {**it.spent} for it in known}
            ended = frozenset(it.key for it in self._ended if not it.calls)
        return LeaseRequest(uuid4().hex, need, spent, ended, is_exact)

    def add(
        self, request: LeaseRequest, answer: LeaseAnswer | None, start: float, charge: Charge | None
    ) -> None:
        """Take the answer to a request that began then; the call takes what it needs."""
        with self._lock:
            self._ended = [it for it in self._ended if it.key not in request.ended]
            if answer is None:
                self._free_until = start + LOOK_SECONDS
            elif answer.refused is None:
                ends = start + USE_SECONDS, start + answer.seconds_left
                made = _Lease(request.key, answer.granted, {**answer.granted}, {}, *ends)
                if self._lease is not None:
                    self._lease.pass_saves(made)
                    self._ended.append(self._lease)
                self._lease = made
                if charge is not None:
                    made.take(charge)

    def end(self, lease: _Lease, need: Amounts, amounts: Amounts) -> bool:
        """Note what a call has stored; return whether another lease will be needed soon."""
        with self._lock:
            lease.calls -= 1
            lease.add(need, 1)
            lease.add(amounts, -1)
            for name in STORED:
                lease.spent[name] = lease.spent.get(name, 0) + amounts.get(name, 0)
            is_low = any(2 * left < lease.granted[name] for name, left in lease.left.items())
            return lease is self._lease and is_low


class KnownQuotas:
    """The quotas of a database, as one process knows them, for all tenants."""

    def __init__(self) -> None:
        self.has_some = False
        self.next_look = 0.0
        """When a database without quotas is asked again."""

        self._tenants: Recent[str, TenantQuota] = Recent(MOST_TENANTS)

    def note(self, *, has_some: bool) -> None:
        """Note whether the database has quotas."""
        self.has_some = has_some
        self.next_look = 0.0 if has_some else monotonic() + LOOK_SECONDS

    def get_tenant(self, tenant: str) -> TenantQuota:
        if (found := self._tenants.get(tenant)) is None:
            found = TenantQuota()
            self._tenants.put(tenant, found)
        return found

    def drop_tenant(self, tenant: str) -> None:
        """Forget a tenant, whose quota was changed."""
        self.note(has_some=True)
        self._tenants.drop(tenant)


class SqlQuotas(RunsQueries, LimitsTenants):
    """The part of a backend that limits its tenant."""

    _write_unrecorded: Callable[[Callable[[Repository], T], object], Awaitable[T]]

    def is_unlimited(self) -> bool:
        """Return whether the database had no quota when this process looked last."""
        quotas: KnownQuotas = self._database.opened.quotas
        return monotonic() < quotas.next_look

    async def run_limited(self, charge: Charge, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call that stores something, if the quota of the tenant permits it."""
        if charge.connection is not None:
            self._database.require_joinable(charge.connection)
        if not await self._has_quotas():
            return await call()
        quota = self._database.opened.quotas.get_tenant(self._database.tenant)
        await self._admit(quota, charge)
        if (lease := charge.lease) is None:
            return await call()
        spent = charge.need  # also by a call whose outcome is unknown
        token = charged_call.set(charge)
        try:
            result = await call()
            stored = max(spent["bytes"], charge.appended)
            created = max(charge.opened, int(charge.is_new(result)))
            spent = {**spent, "bytes": stored, "threads": created}
        except MoreThreadsError:
            spent = {}
        except LocusStoreError as exc:
            if not isinstance(exc, UNANSWERED):
                spent = {}
            raise
        else:
            return result
        finally:
            charged_call.reset(token)
            # Work beside a transaction of the caller's may have to wait for it.
            if quota.end(lease, charge.need, spent) and charge.connection is None:
                self._submit("quota", partial(self._lease, quota))
        charge.need["threads"], charge.lease = charge.opened, None
        return await self.run_limited(charge, call)

    async def _has_quotas(self) -> bool:
        """Return whether the database has quotas; look for the first one beside the calls."""
        known: KnownQuotas = self._database.opened.quotas
        if not known.has_some and self._database.opened.store:
            known.note(has_some=False)
            self._submit("quotas", self._look)
        elif not known.has_some:
            with self._translating:
                await self._runner.open()
        return known.has_some

    def _submit(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do work beside the calls; the next call does what has failed."""

        async def run() -> None:
            try:
                await work()
            except QuotaError:
                pass
            except Exception as exc:  # noqa: BLE001  (of the storage)
                logger.warning("the quotas of %r were not read: %s", self._database.tenant, exc)

        self._background.get().submit((name, self._database.tenant), run)

    async def _look(self) -> None:
        named = {"name": QUOTAS_SETTING}
        row = await self._query(
            lambda it: it.sql.setting.fetch_first(it.connection, named), self._runner
        )
        self._database.opened.quotas.note(has_some=row is not None)

    async def _admit(self, quota: TenantQuota, charge: Charge) -> None:
        """Take what a call needs, by another lease if that is necessary."""
        if charge.source is not None:
            source, charge.source = charge.source, None
            measured = await self._query(lambda it: count_stored(it, source), self._runner)
            charge.need["bytes"] += measured["bytes"]
        if quota.take(charge):
            return
        try:
            await self._lease(quota, charge)
        except QuotaError as exc:
            if charge.is_due and (exc.quota == SAVES or (exc.used or 0) <= (exc.limit or 0)):
                quota.take(charge, exceeds=True)
                return
            if exc.quota != "threads" or charge.opened:
                raise
            missing = [it for it in charge.threads if not await self.has_thread(it)]
            if len(missing) == charge.need["threads"]:
                raise
            charge.need["threads"] = len(missing)
            await self._lease(quota, charge)

    async def _lease(self, quota: TenantQuota, charge: Charge | None = None) -> None:
        """Ask for a lease, of which a call takes what it needs, if enough is left."""
        connection = charge.connection if charge and self._database.has_one_writer else None
        request = quota.make_request(charge.need if charge else {}, is_exact=connection is not None)
        begun = monotonic()
        answer = await self._write_unrecorded(partial(_take, request=request), connection)
        if answer is not None and answer.wants_count:
            request = request._replace(recount=await self._count(answer.spent, connection))
            answer = await self._write_unrecorded(partial(_take, request=request), connection)
        quota.add(request, answer, begun, charge)
        if answer is not None and answer.refused is not None:
            raise _make_error(self._database.tenant, answer, request.need)

    async def _count(self, spent_before: Amounts, connection: object = None) -> Count:
        """Count what the tenant stores, as the caller's transaction sees it if there is one."""
        count = partial(_count_stored, spent_before=spent_before)
        if connection is None:
            return await self._query(count, self._runner)
        return await self._write_unrecorded(count, connection)

    async def get_quota(self) -> QuotaUse:
        row = await self._query(_read, self._runner)
        stored = (await self._count({})).stored
        if row is None:
            return QuotaUse(quota=Quota(), saves=0, **stored)
        used = load_usage(row.usage).compute_used(row.at.timestamp())
        return QuotaUse(quota=Quota(**row.limits), saves=used[SAVES], **stored)

    async def set_quota(self, quota: Quota) -> None:
        if not isinstance(quota, Quota):
            raise InvalidArgumentError(f"quota must be a Quota, not {type(quota).__name__}")
        row = await self._query(_read, self._runner)
        count = await self._count({} if row is None else load_usage(row.usage).spent)
        put = partial(_put_limits, limits=quota.to_limits(), count=count)
        await self._write_unrecorded(put, None)
        self._database.opened.quotas.drop_tenant(self._database.tenant)


def _make_error(tenant: str, answer: LeaseAnswer, need: Amounts) -> QuotaError:
    name = answer.refused or ""
    limit, used = answer.limits[name], answer.used[name]
    left = math.ceil(answer.seconds_left) if name == SAVES else None
    remedy = "delete something" if left is None else f"try again in {left} s"
    return QuotaError(
        f"tenant {tenant!r} has used {used:,} of {limit:,} {name.replace('_', ' ')}, and this call "
        f"needs {need[name]:,}; nothing was written: {remedy}, or raise the quota",
        tenant=tenant,
        quota=name,
        limit=limit,
        used=used,
        retry_after_seconds=left,
    )


def _count_stored(reads: Reads, spent_before: Amounts) -> Count:
    begun = monotonic()  # the time in which others have the connection is no time of a count
    return Count(count_stored(reads), spent_before, monotonic() - begun)


def _read(reads: Reads) -> sa.Row[Any] | None:
    """Return the row of the tenant, with the server's time in seconds since 1970."""
    c = reads.tables.quotas.c
    query = sa.select(c.limits, c.usage, c.revision, make_clock().label("at"))
    return reads.connection.execute(query.where(c.tenant == reads.tenant)).first()


def _take(repository: Repository, request: LeaseRequest) -> LeaseAnswer | None:
    """Take a lease; ``None``: the tenant has no quota."""
    while (row := _read(repository)) is not None:
        usage = load_usage(row.usage)
        answer = take_lease(usage, row.limits, request, row.at.timestamp())
        if _put(repository, row, usage=asdict(usage)):
            return answer
    return None


def _put(repository: Repository, row: sa.Row[Any], **values: Any) -> bool:
    """Change the row, unless another transaction has changed it since it was read."""
    table = repository.tables.quotas
    if all(getattr(row, name) == value for name, value in values.items()):
        return True
    is_it = table.c.tenant == repository.tenant, table.c.revision == row.revision
    changed = table.update().where(*is_it).values(**values, revision=row.revision + 1)
    return bool(repository.connection.execute(changed).rowcount)


def _put_limits(repository: Repository, limits: Amounts, count: Count) -> None:
    """Store the limits of the tenant; without any it has no row."""
    table, settings = repository.tables.quotas, repository.tables.settings
    if not limits:
        repository.connection.execute(table.delete().where(table.c.tenant == repository.tenant))
        return
    while (row := _read(repository)) is not None:
        usage, at = load_usage(row.usage), row.at.timestamp()
        usage.take_count(count, at)
        usage.due_at = at + UNNOTICED_SECONDS
        if _put(repository, row, limits=limits, usage=asdict(usage)):
            return
    at = repository.connection.execute(sa.select(make_clock())).scalar_one().timestamp()
    usage = Usage(due_at=at + UNNOTICED_SECONDS, counted=count.stored, counted_at=at)
    usage.count_seconds = count.seconds
    if repository.sql.setting.fetch_first(repository.connection, {"name": QUOTAS_SETTING}) is None:
        repository.connection.execute(settings.insert().values(name=QUOTAS_SETTING, value="on"))
    row_values = {"tenant": repository.tenant, "limits": limits, "usage": asdict(usage)}
    repository.connection.execute(table.insert().values(**row_values, revision=1))
