"""Reports of operations to the standard library's logging and to OpenTelemetry.

``observe`` wraps the public methods. It begins an ``Operation``, which the code that works for it
fills (``note``, ``count``), in other tasks too, and reports it at its end. This module never sees
a state, metadata or a password. It reports an error by its class.
"""

from __future__ import annotations

import inspect
import logging
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from sys import modules
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakSet

from locus_store.errors import ConflictError, IntegrityError, LocusStoreError
from locus_store.values.encoding import TooLargeError
from locus_store.values.frames import Change

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
SearchMethod = TypeVar("SearchMethod", bound=Callable[..., Any])
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]

operations: Final = logging.getLogger("locus_store.operations")
"""DEBUG each operation; WARNING a conflict kept as a branch; ERROR stored bytes that are wrong."""

connections: Final = logging.getLogger("locus_store.connections")
"""INFO opened, closed, migrated; WARNING retries, reconnects, groups that were done one by one."""

logging.getLogger("locus_store").addHandler(logging.NullHandler())

MAX_NAME: Final = 255
SECONDS: Final = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0]
"""Buckets of durations, as the semantic conventions have them."""

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.33.0"
"""The semantic conventions that the names of attributes follow."""


@dataclass(slots=True)
class Operation:
    """One call, with the facts collected about it."""

    name: str
    backend: object
    facts: dict[str, Any] = field(default_factory=dict)


_current: ContextVar[Operation | None] = ContextVar("locus_store_operation", default=None)


def get_current() -> Operation | None:
    """Return the current operation, to continue it in another context."""
    return _current.get()


@contextmanager
def enter(operation: Operation | None) -> Iterator[None]:
    """Make ``operation`` the current one."""
    token = _current.set(operation)
    try:
        yield
    finally:
        _current.reset(token)


def note(**facts: Any) -> None:
    """Add facts to the current operation; ``None`` values are left out."""
    operation = _current.get()
    if operation is not None:
        operation.facts.update((name, it) for name, it in facts.items() if it is not None)


def count(fact: str, number: int, operation: Operation | None = None) -> None:
    """Add a number to a fact of the operation, or of the current one."""
    operation = operation or _current.get()
    if operation is not None:
        operation.facts[fact] = operation.facts.get(fact, 0) + number


def observe(name: str) -> Callable[[Method[S, P, R]], Method[S, P, R]]:
    """Report each call of a method of a backend, or of an object with ``self.backend``.

    A call within another one of the same backend is part of that one.
    """

    def decorate(method: Method[S, P, R]) -> Method[S, P, R]:
        names = list(inspect.signature(method).parameters)[1:]

        @wraps(method)
        async def run_method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            is_listening = operations.isEnabledFor(logging.DEBUG) or _has_provider()
            if not is_listening or _is_part(backend := getattr(self, "backend", self)):
                try:
                    return await method(self, *args, **kwargs)
                except IntegrityError as exc:
                    report_damage(exc, name, _collect_ids(names, args, kwargs))
                    raise
            operation = Operation(name, backend, _collect_ids(names, args, kwargs))
            with enter(operation), _report_operation(operation):
                result = await method(self, *args, **kwargs)
                if isinstance(result, list):
                    operation.facts.setdefault("rows", len(result))
                return result

        return run_method

    return decorate


def _is_part(backend: object) -> bool:
    outer = _current.get()
    return outer is not None and outer.backend is backend


def _collect_ids(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the ids among the arguments; a state passed in place of an id is left out."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    ids = {
        "thread_id": given.get("thread_id", given.get("source_thread_id")),
        "checkpoint_id": given.get("checkpoint_id"),
    }
    return {key: it for key, it in ids.items() if _is_name(it)}


def _is_name(value: object) -> bool:
    """Return whether every exporter can send the value."""
    if not isinstance(value, str) or len(value) > MAX_NAME:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


@contextmanager
def _report_operation(operation: Operation) -> Iterator[None]:
    telemetry = _find_telemetry()
    begun = time.perf_counter()
    error: str | None = None
    with telemetry.begin_span(operation) if telemetry else nullcontext() as span:
        try:
            yield
        except CancelledError:
            operation.facts["outcome"] = "cancelled"
            raise
        except Exception as exc:
            error = type(exc).__qualname__
            if isinstance(exc, ConflictError):
                operation.facts["outcome"] = "conflict"
            if isinstance(exc, IntegrityError):
                report_damage(exc, operation.name, operation.facts)
            raise
        finally:
            seconds = time.perf_counter() - begun
            _log(operation, seconds, error)
            if telemetry:
                telemetry.end_span(span, operation, seconds, error)


def _log(operation: Operation, seconds: float, error: str | None) -> None:
    if operations.isEnabledFor(logging.DEBUG):
        outcome, milliseconds = error or "done", seconds * 1000
        facts = _join_facts(operation.facts)
        operations.debug("%s: %s in %.2f ms%s", operation.name, outcome, milliseconds, facts)


def _join_facts(facts: dict[str, Any]) -> str:
    return "".join(f" {name}={it!r}" for name, it in facts.items())


_told: WeakSet[IntegrityError] = WeakSet()


def report_damage(exc: IntegrityError, name: str, facts: dict[str, Any]) -> None:
    """Report damaged data, once for each error, under the name of the outermost method."""
    if exc not in _told:
        _told.add(exc)
        operations.error("%s: stored data is damaged (IntegrityError)%s", name, _join_facts(facts))


def report_not_joined(thread_id: str, exc: Exception) -> None:
    """Report records that were not joined; they are read one by one, and joined later."""
    operations.debug("the records of thread %r were not joined (%s)", thread_id, _name_class(exc))


def report_branch(thread_id: str, checkpoint_id: str) -> None:
    """Report that a conflicting save was stored as a side branch."""
    operations.warning(
        "thread %r was moved on by another writer; checkpoint %r is kept as a side branch",
        thread_id,
        checkpoint_id,
    )


def report_too_large(thread_id: str) -> None:
    """Report that a search skipped a thread because one of its states is too large."""
    count("skipped_threads", 1)
    operations.warning(
        "search: skipped thread %r, which holds a state larger than max_state_bytes", thread_id
    )
    if telemetry := _find_telemetry():
        telemetry.skipped.add(1, {"db.operation.name": "search"})


def skip_too_large(search: SearchMethod) -> SearchMethod:
    """Decorate a search of one thread, its first argument, to skip it if it is too large."""

    @wraps(search)
    def search_or_skip(self: Any, thread_id: str, /, *args: Any) -> Any:
        try:
            return search(self, thread_id, *args)
        except TooLargeError:
            report_too_large(thread_id)
            return None

    return search_or_skip  # type: ignore[return-value]  # of the same signature


def report_retry(reason: str, exc: BaseException) -> None:
    """Report that an operation is retried."""
    count("retries", 1)
    connections.warning("%s: doing it again after %s", reason, _name_class(exc))
    if telemetry := _find_telemetry():
        telemetry.retries.add(1, {"locus_store.reason": reason})


def report_replaced(what: str, exc: BaseException | None = None) -> None:
    """Report that an unusable connection was replaced."""
    because = f" ({_name_class(exc)})" if exc else ""
    connections.warning("%s; opening it again%s", what, because)


def report_skipped(what: str, threads: int) -> None:
    """Report threads that were left unchanged because other transactions held them."""
    note(skipped=threads)
    noun = "thread" if threads == 1 else "threads"
    connections.warning(
        "%s: skipped %d %s that other transactions hold; run it again later", what, threads, noun
    )


def report_unswept(what: str, thread_id: str, exc: LocusStoreError) -> None:
    """Report old versions that stay, as the later ones cannot be rewritten without them."""
    operations.warning("%s: old versions of thread %r stay: %s", what, thread_id, exc)


def report_unremoved(thread_id: str, exc: LocusStoreError) -> None:
    """Report data that is stored beside a thread and is not its own any more."""
    operations.warning("thread %r: old data stays until a vacuum: %s", thread_id, exc)


def report_divided(members: list[Operation | None], exc: BaseException) -> None:
    """Report that a group of saves failed, and each save runs again alone."""
    for operation in members:
        if operation is not None:
            count("retries", 1, operation)
    connections.warning(
        "group: doing %d saves of one statement again, one by one, after %s",
        len(members),
        _name_class(exc),
    )
    if telemetry := _find_telemetry():
        telemetry.retries.add(len(members), {"locus_store.reason": "group"})


def report_cache_failure(cache: object, exc: BaseException, *, is_first: bool) -> None:
    """Report that a cache could not be used; warn only of the first failure in a row."""
    if is_first:
        connections.warning(
            "%r: going on with the database alone after %s", cache, _name_class(exc)
        )
    if telemetry := _find_telemetry():
        telemetry.cache_failures.add(1, {"error.type": _name_class(exc)})


def record_commit(database: object, writes: int) -> None:
    """Record the number of writes that shared a commit."""
    if _has_provider() and (telemetry := _make_telemetry()):
        telemetry.groups.record(writes, {"db.system.name": find_system(type(database))})


def report_opened(database: object) -> None:
    """Report that the schema was verified or created."""
    connections.info("opened %s", _mask_place(database))


def report_closed(database: object) -> None:
    """Report that connections were released."""
    connections.info("closed %s", _mask_place(database))


def _mask_place(database: object) -> str:
    """Return a database's place as error messages name it, without the password."""
    if isinstance(database, str):
        return database
    return f"{find_system(type(database))} {getattr(database, '_where', '')}".rstrip()


def _name_class(exc: BaseException) -> str:
    """Return an error's class and SQLSTATE, never its message, which may quote values."""
    cause = getattr(exc, "orig", None) or exc.__cause__ or exc
    state = getattr(cause, "sqlstate", None)
    return f"{type(cause).__name__} {state}" if isinstance(state, str) else type(cause).__name__


_SHARED: Final = {"locus_store.backend", "locus_store.sql.backend", "locus_store.types.tenants"}
"""Modules of classes that backends of several systems derive from."""


def find_system(kind: type) -> str:
    """Return the database system's name, by the first class that this library defines."""
    return _name_system(kind.__mro__)


@lru_cache(maxsize=256)
def _name_system(classes: tuple[type, ...]) -> str:
    ours = (it for it in classes if it.__module__.startswith("locus_store."))
    found = next((it for it in ours if it.__module__ not in _SHARED), None)
    return (found or classes[0]).__name__.removesuffix("Backend").removesuffix("Database").lower()


def measure_stored(change: Change) -> int:
    """Return the size of what a save wrote: frames, or the whole state if it was needed."""
    whole = change.tree._packed  # noqa: SLF001  (no method returns its size)
    return len(whole if whole is not None else change.frames or b"")


def _find_telemetry() -> Telemetry | None:
    return _make_telemetry() if _has_provider() else None


@lru_cache(maxsize=1)
def _make_telemetry() -> Telemetry | None:
    try:
        return Telemetry()
    except (ImportError, TypeError):  # an API without metrics, or without buckets
        connections.warning("OpenTelemetry is not told: its API is older than 1.30")
        return None


class Telemetry:
    """A tracer and its instruments; the application's SDK decides on exporters."""

    def __init__(self) -> None:
        from importlib.metadata import version  # noqa: PLC0415  (slow to import)

        from opentelemetry import metrics, trace  # noqa: PLC0415  (who uses it has imported it)

        installed = version("locus-store")
        self._trace = trace
        self._tracer = trace.get_tracer("locus_store", installed, schema_url=SCHEMA_URL)
        meter = metrics.get_meter("locus_store", installed, schema_url=SCHEMA_URL)
        self._durations = meter.create_histogram(
            "db.client.operation.duration",
            "s",
            "Duration of an operation",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._rows = meter.create_histogram(
            "db.client.response.returned_rows", "{row}", "Rows that an operation gave or read"
        )
        self._written = meter.create_counter(
            "locus_store.written", "By", "Bytes of states stored, as changes and compressed"
        )
        self._read = meter.create_counter("locus_store.read", "By", "The same, read")
        self._conflicts = meter.create_counter(
            "locus_store.conflicts", "{conflict}", "Saves that lost to another writer"
        )
        self.retries = meter.create_counter(
            "locus_store.retries", "{retry}", "What was done again, by reason"
        )
        self.skipped = meter.create_counter(
            "locus_store.skipped", "{thread}", "Threads that a search left out as too large"
        )
        self.cache_failures = meter.create_counter(
            "locus_store.cache.failures", "{failure}", "Calls of a session's cache that failed"
        )
        self.groups = meter.create_histogram(
            "locus_store.group.size", "{write}", "Writes that shared a commit"
        )

    def begin_span(self, operation: Operation) -> AbstractContextManager[Any]:
        """Begin a span that is current within the block."""
        system = find_system(type(operation.backend))
        kind = self._trace.SpanKind
        span = self._tracer.start_span(
            f"locus_store.{operation.name}",
            kind=kind.INTERNAL if system == "memory" else kind.CLIENT,
            attributes={"db.system.name": system, "db.operation.name": operation.name},
        )
        return self._trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        )

    def end_span(self, span: Any, operation: Operation, seconds: float, error: str | None) -> None:
        """Record the operation's facts when it ends."""
        facts, system = operation.facts, find_system(type(operation.backend))
        about = {"db.system.name": system, "db.operation.name": operation.name}
        self._measure(about, facts)
        if error is not None:
            about["error.type"] = error
        self._durations.record(seconds, about)
        if not span.is_recording():
            return
        span.set_attribute("locus_store.backend", repr(operation.backend))
        for name, value in facts.items():
            known = "db.response.returned_rows" if name == "rows" else f"locus_store.{name}"
            span.set_attribute(known, value)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))

    def _measure(self, about: dict[str, str], facts: dict[str, Any]) -> None:
        if (written := facts.get("written_bytes")) is not None:
            self._written.add(written, about)
        if (read := facts.get("read_bytes")) is not None:
            self._read.add(read, about)
        if (rows := facts.get("rows")) is not None:
            self._rows.record(rows, about)
        if (outcome := facts.get("outcome")) in {"conflict", "side"}:
            self._conflicts.add(1, {**about, "locus_store.outcome": outcome})


def _has_provider() -> bool:
    """Return whether the program has set a provider of OpenTelemetry.

    A program that does so has imported the API; this package never imports it by itself. Many
    frameworks import it, too, and the API's own providers drop everything.
    """
    if _unasked:
        if "opentelemetry" not in modules:
            return False
        if _ask_parts():
            return True
    if _kept["trace"]["_TRACER_PROVIDER"] is None and _kept["metrics"]["_METER_PROVIDER"] is None:
        return False
    return any(_is_real(_kept[part][name]) for part, (*_, name) in _PARTS.items())


def _ask_parts() -> bool:
    """Ask the parts of the API that were imported since the last call; see ``_PARTS``."""
    found = False
    for part in [*_unasked]:
        getter, module, name = _PARTS[part]
        ask = getattr(modules.get(f"opentelemetry.{part}"), getter, None)
        if ask is not None:  # the import has ended
            found |= _is_real(ask())
            if name in (values := getattr(modules.get(module), "__dict__", {})):
                _kept[part] = values
                _unasked.discard(part)
    return found


def _is_real(provider: object) -> bool:
    """Return whether a provider is another one than those of the API."""
    own = "opentelemetry.trace", "opentelemetry.metrics"
    return provider is not None and not type(provider).__module__.startswith(own)


_PARTS: Final = {
    "trace": ("get_tracer_provider", "opentelemetry.trace", "_TRACER_PROVIDER"),
    "metrics": ("get_meter_provider", "opentelemetry.metrics._internal", "_METER_PROVIDER"),
}
"""Parts of the API: the function that returns the provider, and where the API keeps it.

The API keeps ``None`` while no provider is set; the function loads the one that the environment
names. Reading the kept value takes a tenth of the time.
"""

_unasked: Final = set(_PARTS)

_kept: Final[dict[str, dict[str, Any]]] = {it: {name: None} for it, (*_, name) in _PARTS.items()}
"""The values of the modules of parts that were asked."""
