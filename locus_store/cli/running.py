"""``locus-store threads turns``, ``release``, ``effects`` and ``resolve``: what runs in threads."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Annotated, Any

import typer

from locus_store.backend import FullBackend, TakesTurns, needs
from locus_store.cli.help import add_command
from locus_store.cli.opening import Thread, find_named, find_thread_id
from locus_store.cli.output import cut, format_time, put_found, put_outcome, select
from locus_store.cli.store import read_json
from locus_store.cli.tenants import TenantOptions
from locus_store.cli.threads import CELL, Limit, threads
from locus_store.effects import Effect
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.open import Storage
from locus_store.timeline.readable import strip_tags
from locus_store.types.turns import ThreadTurn
from locus_store.values.msgpack import to_json

TURN_FIELDS = ("thread_id", "position", "owner", "number", "since", "seconds_left")


@add_command(threads, "turns")
def list_turns(*, limit: Limit = 100, at: TenantOptions) -> None:
    """List the turns of threads that are held (place 0), and those that wait for them.

    --json: [{thread_id, position, owner, number, since, seconds_left}].
    """
    found = at.ask(lambda it: needs(it, TakesTurns).list_turns(limit=limit))
    rows = ((it.thread_id, it.position, it.owner, it.number, format_time(it.since)) for it in found)
    document = [select(it, TURN_FIELDS) for it in found]
    columns = ("thread", "place", "owner", "number", "since")
    put_found(document, columns, rows, ids=columns[:1], as_json=at.as_json)


@add_command(threads, "release")
def release_turn(thread: Thread, *, at: TenantOptions) -> None:
    """End the turn of a thread: its holder's next save is refused; --json: {released}.

    The first one that waits has the turn then.
    """

    async def release(backend: FullBackend) -> ThreadTurn:
        power = needs(backend, TakesTurns)
        held = await power.list_turns(thread)
        if not held or not await power.end_turn(thread, held[0].turn_key):
            raise NotFoundError(f"no turn of thread {thread!r} is held; 'threads turns' lists them")
        return held[0]

    ended = at.ask(release)
    put_outcome({"released": ended.number}, f"ended {ended}", as_json=at.as_json)


EFFECT_FIELDS = (
    *("key", "status", "calls", "idempotency_key", "begun_at", "changed_at", "arguments"),
    *("result", "error"),
)


@add_command(threads, "effects")
def list_effects(
    thread: Thread,
    *,
    since: Annotated[
        str | None, typer.Option(help="Only what ran since this version was saved.")
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Only calls whose outcome is unknown.")
    ] = False,
    at: TenantOptions,
) -> None:
    """List the effects of a thread: calls of tools, and their outcomes.

    Settle an unknown outcome with 'threads resolve'. --json: [{key, status, calls, idempotency_key,
    begun_at, changed_at, arguments, result, error}].
    """

    async def found(backend: FullBackend) -> list[Effect]:
        name, version = await find_named(backend, thread, since, "")
        return await Storage(backend).checkpointer().effects(name, since=version)

    effects = [
        replace(effect, result=_decode(effect.result))
        for effect in at.ask(found)
        if effect.status == "unknown" or not unknown
    ]
    document = [select(it, EFFECT_FIELDS) for it in effects]
    columns = ("effect", "status", "calls", "begun", "idempotency_key", "result")
    ids = ("effect", "idempotency_key")
    put_found(document, columns, map(_make_row, effects), ids=ids, as_json=at.as_json)


def _make_row(effect: Effect) -> tuple[object, ...]:
    begun, result = format_time(effect.begun_at), cut(effect.error or effect.result, CELL)
    return effect.key, effect.status, effect.calls, begun, effect.idempotency_key, result


def _decode(result: Any) -> Any:
    """Return a result; what LangGraph's serializer gave, in a readable form."""
    if not isinstance(result, dict) or result.keys() != {"type", "data"}:
        return result
    try:
        return strip_tags(to_json(result["type"], b64decode(result["data"], validate=True)))
    except (TypeError, ValueError):  # a tool's own result
        return result


@add_command(threads)
def resolve(
    thread: Thread,
    key: Annotated[str, typer.Argument(help="The key of the effect.")],
    *,
    result: Annotated[
        str | None,
        typer.Option(help="The call took place: its result as JSON, @FILE, or - for stdin."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="The call did not take place; it is made again.")
    ] = False,
    at: TenantOptions,
) -> None:
    """Settle an effect whose outcome is unknown, after finding out.

    One whose process gives a sign of life within 15 seconds is refused: the call is running.
    --json: {thread_id, key, took_place}.
    """
    if (result is None) is not not_done:
        raise InvalidArgumentError("give --result, or --not-done; nothing was changed")
    value = None if result is None else read_json(result, "--result")

    async def settled(backend: FullBackend) -> str:
        name = await find_thread_id(backend, thread)
        checkpointer = Storage(backend).checkpointer()
        await checkpointer.resolve_effect(name, key, took_place=not not_done, result=value)
        return name

    name = at.ask(settled)
    text = f"{name}: effect {key!r} " + ("may be called again" if not_done else "is finished")
    document = {"thread_id": name, "key": key, "took_place": not not_done}
    put_outcome(document, text, as_json=at.as_json)
