"""Effects: calls of tools that are made once, also when a process ends in the middle of one.

The intent of a call is stored before it, and its result after it. Both are pending writes of the
thread, in a namespace of their own: the key of the effect is the checkpoint's id, the idempotency
key the task, and each event has the next place. So effects are copied, deleted, expire and cross
HTTP as their threads do. An event is stored only if its writer has seen all events before it, and
if they still exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from inspect import isawaitable, iscoroutine, iscoroutinefunction, signature
from itertools import groupby
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

from locus_store.backend import KeepsEffects, StorageBackend, needs
from locus_store.errors import (
    ConflictError,
    InvalidArgumentError,
    LocusStoreError,
    NotFoundError,
    OutcomeUnknownError,
    SerializationError,
    TurnError,
)
from locus_store.runtime import stepping
from locus_store.runtime.background import repeat_beside
from locus_store.runtime.loops import settle
from locus_store.runtime.observe import enter, note, observe
from locus_store.types import ArchivedWrite, CheckpointerCapabilities, PendingWrite
from locus_store.types.arguments import MAX_TTL_SECONDS, check_names, check_number
from locus_store.types.records import make_unsupported_error
from locus_store.values import frames
from locus_store.values.canonical import encode_canonical_json
from locus_store.values.encoding import digest
from locus_store.values.surrogates import restore
from locus_store.versions import JSON_WRITE

NAMESPACE: Final = "locus.effects"
"""The namespace of a thread whose pending writes are its effects."""

BEAT: Final = -1
"""The place of the write that a running call renews."""

BEATS: Final = 4
"""Renewals in the time of a lease."""

LEASE_SECONDS: Final = 15.0
FIRST_PAUSE_SECONDS: Final = 0.01
MOST_PAUSE_SECONDS: Final = 0.5
ERROR_CHARACTERS: Final = 300

Call: TypeAlias = Callable[[str], Any]
"""Is given the idempotency key; returns the result, or an awaitable of it."""

Status: TypeAlias = Literal["unknown", "finished", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A call with a key in a thread, and what is known of it."""

    thread_id: str
    key: str
    status: Status
    """``"unknown"``: a call was begun, and may be running; ``"open"``: it was certainly not made,
    and the next one may be."""

    idempotency_key: str
    """For the outside system: the same in each call of this effect, also in copies of the
    thread."""

    calls: int
    """The calls that were begun."""

    arguments: str | None
    """Digest of the arguments, in hexadecimal."""

    result: Any = None
    error: str | None = None
    """The error of the last call."""

    begun_at: datetime
    changed_at: datetime
    """Of the last event, by the storage's clock like ``begun_at``."""


@dataclass(frozen=True, slots=True)
class Done:
    """An answer of ``on_unknown``: the call had taken place."""

    result: Any = None


OnUnknown: TypeAlias = Literal["raise", "repeat"] | Callable[[Effect], Any]
"""A callable asks the outside system: it returns ``Done``, ``"repeat"`` or ``"raise"``."""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The stored events of an effect."""

    thread_id: str
    key: str
    writes: Sequence[ArchivedWrite] = ()
    effect: Effect | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the next event of an effect."""

    thread_id: str
    key: str
    task: str
    number: int = 0

    @property
    def next(self) -> _Place:
        """The place behind it."""
        return replace(self, number=self.number + 1)


class EffectLog:
    """The events of the effects of a backend.

    Args:
        backend: Keeps them.
        ttl_seconds: A thread that expires has at least so much time left after each event.
    """

    def __init__(self, backend: StorageBackend, *, ttl_seconds: float | None = None) -> None:
        self.backend = needs(backend, KeepsEffects)
        self._max_bytes = backend.max_state_bytes
        self._ttl_seconds = ttl_seconds

    async def carry_out(
        self, place: _Place, call: Call, seconds: float, not_done: tuple[type[Exception], ...]
    ) -> Any:
        """Make the call of an effect whose intent is stored; return its result."""
        name = _name(place)
        outer = _UNDER_WAY.set(_UNDER_WAY.get() | {self.identify(place.thread_id, place.key)})
        try:
            async with repeat_beside(partial(self._write_beat, place), seconds):
                with enter(None):  # calls of the tool have reports of their own
                    result = await _invoke(call, place.task)
        except BaseException as exc:
            is_open = isinstance(exc, (*not_done, _NotStartedError))
            await self._note(place, "open" if is_open else "failed", exc)
            raise
        finally:
            _UNDER_WAY.reset(outer)
        try:
            if await settle(self.add(place.next, "finished", result)):
                return restore(self._decode(self._encode(result)))
        except SerializationError as exc:
            await self._note(place, "failed", exc)
            raise SerializationError(
                f"{name} was called, and its result cannot be stored: {exc}. Let the call return "
                "JSON, and settle the effect with resolve_effect or `locus-store threads resolve`"
            ) from exc
        except LocusStoreError as exc:
            exc.add_note(f"{name} was called, and its result may not be stored")
            raise
        found = (await self.read(place.thread_id, place.key)).effect
        if found and found.status == "finished":
            return found.result
        raise ConflictError(
            f"{name} was called, and its result is not stored: the thread was deleted, or the "
            "effect was settled otherwise meanwhile"
        )

    def identify(self, thread_id: str, key: str) -> tuple[int, str, str]:
        """Return what names an effect within the process."""
        return id(self.backend), thread_id, key

    async def _note(self, place: _Place, event: str, error: BaseException) -> None:
        """Store that a call failed; the caller gets the call's error, whatever this does."""
        text = f"{type(error).__name__}: {error}".rstrip(": ")[:ERROR_CHARACTERS]
        with suppress(LocusStoreError):
            await settle(self.add(place.next, event, text.encode(errors="replace").decode()))

    async def wait_for_event(self, ledger: _Ledger, lease_seconds: float, deadline: float) -> bool:
        """Wait for the next event or renewal of a running call; ``False``: none came in time."""
        until = min(monotonic() + lease_seconds, deadline)
        pause, longest = FIRST_PAUSE_SECONDS, min(lease_seconds / BEATS, MOST_PAUSE_SECONDS)
        while (left := until - monotonic()) > 0:
            await stepping.pause(min(left, pause))
            pause = min(2 * pause, longest)
            if (await self.read(ledger.thread_id, ledger.key)).writes != ledger.writes:
                return True
        return False

    async def may_repeat(self, ledger: _Ledger, effect: Effect, on_unknown: OnUnknown) -> bool:
        """Return whether a call of unknown outcome is made again; ``False``: it is settled.

        Raises:
            OutcomeUnknownError: A person has to settle it.
        """
        answer = await _invoke(on_unknown, effect) if callable(on_unknown) else on_unknown
        if answer == "repeat":
            return True
        if isinstance(answer, Done):
            await self.add(_find_place(ledger), "finished", answer.result)
            return False
        if answer != "raise":
            raise InvalidArgumentError(
                f"on_unknown returned {answer!r:.80}; return Done(result), 'repeat' or 'raise'"
            )
        raised = f" and raised {effect.error}" if effect.error else ""
        raise OutcomeUnknownError(
            f"{_name(effect)} was begun at {effect.begun_at.isoformat()}{raised}: whether its call "
            "took place is unknown, and it was not made again. Find out, and use resolve_effect or "
            "`locus-store threads resolve`"
        )

    async def record(self, thread_id: str, key: str, result: Any) -> None:
        """Store the result of a call that was made elsewhere; an earlier effect stays."""
        place = _Place(thread_id, key, "recorded")  # the same for all, so that one stays
        begun = self._write(place, "begun", {"by": uuid4().hex, "arguments": None})
        await self._put(place, [begun, self._write(place.next, "finished", result)])

    async def find_result(self, thread_id: str, key: str) -> Any:
        """Return the result of a finished effect; ``None`` if there is none."""
        effect = (await self.read(thread_id, key)).effect
        return effect.result if effect and effect.status == "finished" else None

    async def read(self, thread_id: str, key: str) -> _Ledger:
        return self.fold(thread_id, key, await self.backend.list_writes(thread_id, NAMESPACE, key))

    def fold(self, thread_id: str, key: str, writes: Sequence[ArchivedWrite]) -> _Ledger:
        """Return the effect that stored events make."""
        events = [it for it in writes if it.write.idx > BEAT]
        if not events:
            return _Ledger(thread_id, key)
        ends = [it for it in events if it.write.channel == "finished"] or events
        task = min(ends, key=attrgetter("created_at")).write.task_id
        events = [it for it in events if it.write.task_id == task]
        begun = [it for it in events if it.write.channel == "begun"]
        last = events[-1]
        told = None if last.write.channel == "begun" else self._decode(last.write.payload)
        is_finished = last.write.channel == "finished"
        effect = Effect(
            thread_id=thread_id,
            key=key,
            status=_STATUS[last.write.channel],
            idempotency_key=last.write.task_id,
            calls=len(begun),
            arguments=self._decode(begun[-1].write.payload)["arguments"],
            result=restore(told) if is_finished else None,
            error=None if is_finished else told,
            begun_at=begun[-1].created_at,
            changed_at=last.created_at,
        )
        return _Ledger(thread_id, key, writes, effect)

    def fold_all(self, thread_id: str, writes: Sequence[ArchivedWrite]) -> list[Effect]:
        """Return the effects of a thread in the order in which they were begun."""
        by_key = groupby(writes, attrgetter("checkpoint_id"))
        each = (self.fold(thread_id, key, [*of_key]) for key, of_key in by_key)
        return sorted((it.effect for it in each if it.effect), key=attrgetter("begun_at", "key"))

    async def add(self, place: _Place, event: str, value: Any) -> bool:
        """Store an event; ``False``: its place is taken, or the thread was deleted."""
        seen = {(place.task, it) for it in (BEAT, *range(place.number))} if place.number else set()
        try:
            await self._put(place, [self._write(place, event, value)], earlier=seen)
        except TurnError:
            raise
        except ConflictError:
            return False
        return True

    async def _write_beat(self, place: _Place) -> None:
        """Show that a call is running."""
        beat = self._write(replace(place, number=BEAT), "beat", uuid4().hex)
        with suppress(LocusStoreError):
            await self._put(place.next, [beat])

    def _write(self, place: _Place, event: str, value: Any) -> PendingWrite:
        return PendingWrite(place.task, place.number, event, JSON_WRITE, self._encode(value))

    async def _put(
        self,
        place: _Place,
        writes: Sequence[PendingWrite],
        *,
        earlier: Collection[tuple[str, int]] | None = None,
    ) -> None:
        await self.backend.put_writes(
            place.thread_id,
            place.key,
            writes,
            namespace=NAMESPACE,
            seen=earlier,
            must_exist="task" if place.number else None,
            ttl_seconds=self._ttl_seconds,
        )

    def _encode(self, value: Any) -> bytes:
        return frames.encode_value(value, self._max_bytes)

    def _decode(self, payload: bytes) -> Any:
        return frames.decode_value(payload, self._max_bytes)


_STATUS: Final[dict[str, Status]] = {
    "begun": "unknown",
    "failed": "unknown",
    "finished": "finished",
    "open": "open",
}
"""The status of an effect after an event."""


def _find_place(ledger: _Ledger) -> _Place:
    """Return the place of the next event."""
    if not ledger.writes:
        return _Place(ledger.thread_id, ledger.key, uuid4().hex)
    last = ledger.writes[-1].write
    return _Place(ledger.thread_id, ledger.key, last.task_id, last.idx + 1)


def _name(effect: Effect | _Place) -> str:
    return f"effect {effect.key!r} of thread {effect.thread_id!r}"


def _hash(arguments: Any) -> str | None:
    return (
        None if arguments is None else digest(encode_canonical_json(arguments, "arguments")).hex()
    )


def _check_functions(call: object, on_unknown: object, not_done: object) -> None:
    if not isinstance(not_done, tuple) or not all(isinstance(it, type) for it in not_done):
        raise InvalidArgumentError(f"not_done={not_done!r:.80} must be a tuple of exceptions")
    if not callable(call):
        raise InvalidArgumentError(
            f"call={call!r:.80} is not callable: pass a function of the idempotency key"
        )
    if not callable(on_unknown) and str(on_unknown) not in {"raise", "repeat"}:
        raise InvalidArgumentError(
            f"on_unknown={on_unknown!r:.80} must be 'raise', 'repeat' or a function"
        )
    if stepping.may_block() and any(map(iscoroutinefunction, (call, on_unknown))):
        raise _NotStartedError(_NEEDS_LOOP)


_NEEDS_LOOP: Final = (
    "this object blocks and calls plain functions only: use the asynchronous one for async "
    "functions; no call was made"
)


_UNDER_WAY: Final[ContextVar[frozenset[tuple[int, str, str]]]] = ContextVar(
    "effects", default=frozenset()
)
"""The effects whose calls the context is in."""


class _NotStartedError(InvalidArgumentError):
    """The call was not made."""


async def _invoke(function: Callable[[Any], Any], argument: Any) -> Any:
    """Return the result of a function of the user's, which may be async.

    A plain function runs in a thread, or in that of the blocking caller.
    """
    if iscoroutinefunction(function):
        return await function(argument)
    result = await stepping.run_users(partial(function, argument))
    if not isawaitable(result):
        return result
    if stepping.may_block():
        if iscoroutine(result):
            result.close()
        raise _NotStartedError(_NEEDS_LOOP)
    return await result


class RunsEffects:
    """The methods of effects, for what has a backend."""

    @observe("effect")
    async def effect(
        self,
        thread_id: str,
        key: str,
        call: Call,
        *,
        arguments: Any = None,
        on_unknown: OnUnknown = "raise",
        wait_seconds: float = 0,
        lease_seconds: float = LEASE_SECONDS,
        not_done: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Make a call once in the life of a thread; return its result, now and later.

        The intent is durable before the call, and the result before this returns. Of two callers,
        one makes the call. Needs ``capabilities.effects``.

        Args:
            thread_id: The thread.
            key: The name of the call in the thread, 1 to 255 characters: for example the id of a
                tool's call.
            call: Makes the call. It is given the idempotency key, and returns JSON, or an awaitable
                of it. A plain function runs in a thread, and a cancelled caller waits for it.
            arguments: JSON. The same key with other arguments is refused.
            on_unknown: If an earlier call was begun and its outcome is unknown: ``"raise"``;
                ``"repeat"`` calls again, with the same idempotency key, once no other process is
                making the call; a function is given the ``Effect``, asks the outside system, and
                returns ``Done(result)``, ``"repeat"`` or ``"raise"``.
            wait_seconds: With ``"raise"``, the longest wait for another process's call.
            lease_seconds: A call is regarded as running until it has shown no sign of life for so
                long. All callers of an effect should give the same.
            not_done: Exceptions of the call which mean that nothing was done: the next caller calls
                again. After any other exception, the outcome is unknown.

        Raises:
            OutcomeUnknownError: The outcome of an earlier call is unknown; no call was made.
            InvalidArgumentError: An argument is not valid, or the arguments are others than those
                of the effect; no call was made.
            SerializationError: The result cannot be stored; the call was made.
        """
        check_names(thread_id, NAMESPACE, key)
        check_number("wait_seconds", wait_seconds, minimum=0, maximum=MAX_TTL_SECONDS)
        check_number("lease_seconds", lease_seconds, maximum=MAX_TTL_SECONDS)
        _check_functions(call, on_unknown, not_done)
        log, hashed = self._effects, _hash(arguments)
        until = monotonic() + (wait_seconds if on_unknown == "raise" else inf)
        while True:
            ledger = await log.read(thread_id, key)
            effect = ledger.effect
            if effect and effect.status != "open" and effect.arguments != hashed:
                raise InvalidArgumentError(
                    f"{_name(effect)} was begun with other arguments; no call was made. Give each "
                    "call a key of its own"
                )
            if effect and effect.status == "finished":
                note(outcome="known")
                return effect.result
            if effect and effect.status == "unknown":
                if log.identify(thread_id, key) in _UNDER_WAY.get():
                    raise InvalidArgumentError(
                        f"{_name(effect)} was asked for by its own call, which would wait for its "
                        "own end; give the inner call a key of its own"
                    )
                if effect.error is None and await log.wait_for_event(ledger, lease_seconds, until):
                    continue
                if not await log.may_repeat(ledger, effect, on_unknown):
                    continue
            place = _find_place(ledger)
            if await log.add(place, "begun", {"by": uuid4().hex, "arguments": hashed}):
                work = log.carry_out(place, call, lease_seconds / BEATS, not_done)
                if iscoroutinefunction(call) or stepping.may_block():
                    return await work
                return await settle(work)  # a thread cannot be cancelled

    @observe("effects")
    async def effects(
        self, thread_id: str, *, since: str | None = None, namespace: str = ""
    ) -> list[Effect]:
        """Return the effects of a thread in the order in which they were begun.

        Args:
            thread_id: The thread.
            since: Only those with an event after this version was saved: what a rewind to it does
                not undo.
            namespace: Of the version.

        Raises:
            NotFoundError: There is no version ``since``.
        """
        check_names(thread_id, namespace, since)
        log = self._effects
        found = log.fold_all(thread_id, await log.backend.list_writes(thread_id, NAMESPACE))
        if since is None:
            return found
        version = await log.backend.version(thread_id, since, namespace=namespace)
        if version is None:
            raise NotFoundError(f"thread {thread_id!r} has no version {since!r}")
        return [it for it in found if it.changed_at >= version.created_at]

    @observe("resolve_effect")
    async def resolve_effect(
        self,
        thread_id: str,
        key: str,
        *,
        took_place: bool,
        result: Any = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """Settle an effect of unknown outcome, after finding out.

        Args:
            thread_id: The thread.
            key: Of the effect.
            took_place: ``True``: the call took place, and later callers get ``result``. ``False``:
                it did not, and the next caller makes it.
            result: JSON.
            lease_seconds: As for ``effect``; so long a sign of life of a call is waited for.

        Raises:
            NotFoundError: There is no such effect.
            ConflictError: Its outcome is known, or the call is running; nothing was changed.
        """
        check_names(thread_id, NAMESPACE, key)
        check_number("lease_seconds", lease_seconds, maximum=MAX_TTL_SECONDS)
        if not took_place and result is not None:
            raise InvalidArgumentError("a call that did not take place has no result")
        log = self._effects
        ledger = await log.read(thread_id, key)
        if ledger.effect is None:
            raise NotFoundError(f"thread {thread_id!r} has no effect {key!r}")
        effect, last = ledger.effect, max(it.created_at for it in ledger.writes)
        is_unknown, event = effect.status == "unknown", "finished" if took_place else "open"
        lost_at = last + timedelta(seconds=lease_seconds, hours=1)  # clocks may differ
        may_run = is_unknown and effect.error is None and datetime.now(UTC) < lost_at
        is_running = may_run and await log.wait_for_event(ledger, lease_seconds, inf)
        if is_running or not is_unknown or not await log.add(_find_place(ledger), event, result):
            what = "is running, or has just ended" if is_running else "has a known outcome"
            raise ConflictError(
                f"{_name(effect)} {what}; nothing was changed. Look at the effects of the thread"
            )

    @property
    def _effects(self) -> EffectLog:
        backend = getattr(self, "backend", None)
        if not isinstance(backend, StorageBackend):
            declared = getattr(self, "capabilities", CheckpointerCapabilities())
            raise make_unsupported_error(type(self).__name__, declared, "effects")
        return EffectLog(backend, ttl_seconds=getattr(self, "ttl_seconds", None))


def make_durable(
    checkpointer: Any, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: ``function(thread_id, key, …)`` makes a call of ``function(…)`` once.

    A parameter ``idempotency_key`` of the function gets the key for the outside system; the other
    arguments are compared.

    Args:
        checkpointer: A checkpointer or a saver; of a blocking one, the decorated function blocks.
        options: Of ``effect``.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        takes_key = "idempotency_key" in signature(function).parameters

        @wraps(function)
        def run(thread_id: str, key: str, *args: Any, **kwargs: Any) -> Any:
            def make(name: str) -> Any:
                return function(*args, **kwargs, **({"idempotency_key": name} if takes_key else {}))

            async def make_async(name: str) -> Any:
                return await make(name)

            call = make_async if iscoroutinefunction(function) else make
            arguments = [list(args), kwargs]
            return checkpointer.effect(thread_id, key, call, arguments=arguments, **options)

        return run

    return decorate
