"""``locus-store threads …``: show, compare and copy threads, and what runs in them."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import typer

from locus_store.backend import FullBackend, TakesTurns, needs
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import (
    Namespace,
    Thread,
    count_contents,
    describe_counts,
    find_named,
    find_thread_id,
    require,
)
from locus_store.cli.output import (
    cut,
    escape,
    format_count,
    format_time,
    print_line,
    print_said,
    put_found,
    put_json,
    put_outcome,
    render_json,
    select,
    show,
    tell_more_after,
)
from locus_store.cli.store import read_json
from locus_store.cli.tenants import TenantOptions
from locus_store.effects import Effect
from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError
from locus_store.open import Storage
from locus_store.timeline import readable
from locus_store.timeline.ancestry import read_line
from locus_store.timeline.changes import BriefChanges, describe_versions
from locus_store.timeline.graph import (
    Cursor,
    Node,
    find_writers,
    list_statuses,
    name_nodes,
    read_graph,
)
from locus_store.timeline.paths import format_path
from locus_store.timeline.readable import Difference, cut_common_ends, find_differences, strip_tags
from locus_store.transfer.building import fork as copy_version
from locus_store.types import Snapshot, Version
from locus_store.types.arguments import check_text
from locus_store.types.turns import ThreadTurn
from locus_store.values.filters import STATE_CLASS
from locus_store.values.msgpack import to_json
from locus_store.versions.sizes import StatusesWanted, ThreadStatus

threads = make_group("Show, compare, copy and remove threads.")

Limit = Annotated[int, typer.Option(min=0, help="At most this many.")]
Checkpoint = Annotated[str | None, typer.Option(help="A checkpoint id; without it the head.")]
Raw = Annotated[bool, typer.Option("--raw", help="Show states as they are stored.")]

Lines: TypeAlias = dict[str, tuple[str, str]]
"""The nodes and the one-line changes of versions, by their ids."""

PAGE = 500
"""Versions that are asked for at once."""

AT_ONCE = 8
"""Threads that are looked at together."""

CELL, LINE = 80, 200
"""Characters of a value that a table and a difference show."""


@add_command(threads, "list")
def list_threads(
    *,
    pattern: Annotated[str, typer.Option(help="Shell-style pattern: * ? [ab] [!ab].")] = "*",
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option(help="Continue after this thread.")] = None,
    at: TenantOptions,
) -> None:
    """List threads, the most recently active first, with their newest version.

    A thread is marked 'interrupted' where LangGraph waits for an answer, and a message log with the
    number of its messages. --json: [{thread_id, checkpoint_id, created_at, metadata, labels,
    interrupted, messages}].
    """
    found, marks = at.ask(lambda it: _read_newest(it, pattern, limit, after))
    document = [_list_thread(thread_id, it, marks[thread_id]) for thread_id, it in found]
    rows = ((it, marks[it], *make_cells(version)) for it, version in found)
    columns = ("thread", "", "newest version", "saved", "metadata")
    put_found(document, columns, rows, ids=columns[:3:2], as_json=at.as_json)
    if found and len(found) == limit and not at.as_json:
        tell_more_after(found[-1][0])


async def _read_newest(
    backend: FullBackend, pattern: str, limit: int, after: str | None
) -> tuple[list[tuple[str, Version | None]], dict[str, ThreadStatus]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def newest(thread_id: str) -> tuple[str, Version | None]:
        async with gate:
            return thread_id, next(iter(await backend.history(thread_id, limit=1)), None)

    check_text("--after", after, optional=True)
    ids = await backend.list_threads(limit, pattern, after=after)
    wanted = StatusesWanted(thread_ids=ids, limit=limit)
    found = {it.thread_id: it for it in await list_statuses(backend, wanted)}
    marks = {it: found.get(it, ThreadStatus(thread_id=it)) for it in ids}
    return list(await asyncio.gather(*map(newest, ids))), marks


def _list_thread(thread_id: str, version: Version | None, marks: ThreadStatus) -> dict[str, Any]:
    names = ("checkpoint_id", "created_at", "metadata", "labels")
    found = dict.fromkeys(names) if version is None else select(version, names)
    about = {"interrupted": "interrupted" in marks.badges, "messages": marks.messages}
    return {"thread_id": thread_id, **found, **about}


def make_cells(version: Version | None, *, raw: bool = False) -> tuple[str, ...]:
    """Return a version's id, time and metadata for a table."""
    if version is None:
        return "", "", ""
    labels = {name: value for name, value in version.labels.items() if name != STATE_CLASS}
    shown = labels | version.metadata
    shown = shown if raw else readable.select_metadata(shown)
    return version.checkpoint_id, format_time(version.created_at), cut(shown, CELL) if shown else ""


@add_command(threads, "show")
def show_thread(
    thread: Thread,
    *,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """Print a version: its metadata and its state.

    Messages are shown as 'user: …', of a LangGraph thread the channels only. --json, always of what
    is stored: {thread_id, namespace, checkpoint_id, parent_id, is_head, created_at, metadata,
    labels, state}.
    """

    async def read(backend: FullBackend) -> tuple[Snapshot, Lines]:
        found = await _read(backend, thread, checkpoint, namespace)
        return found, {} if at.as_json else await _describe(backend, [found.version])

    found, lines = at.ask(read)
    if at.as_json:
        put_json(_describe_version(found.version, found.head.sequence) | {"state": found.state})
        return
    for name, value in _describe_version(found.version, found.head.sequence).items():
        is_told = name == "metadata" and not raw
        text = readable.select_metadata(value) if is_told else value
        text = format_time(value) if isinstance(value, datetime) else text
        print_line(f"{name + ':':<15}{text if isinstance(text, str) else render_json(text)}")
    for name, line in zip(("by", "changed"), lines[found.version.checkpoint_id], strict=True):
        if line:
            print_line(f"{name + ':':<15}{line}")
    shown_state = found.state if raw else readable.make_readable(found.state)
    if shown_state == found.state:
        show(render_json(found.state, indent=True))
        return
    for name, value in shown_state.items():
        if isinstance(value, list) and value and all(isinstance(it, str) for it in value):
            print_line(f"{name}:")
            for element in value:
                print_said(f"  {element}")
        else:
            print_line(f"{name}: {value if isinstance(value, str) else render_json(value)}")


async def _read(
    backend: FullBackend, thread: str, checkpoint: str | None, namespace: str
) -> Snapshot:
    thread, checkpoint = await find_named(backend, thread, checkpoint, namespace)
    found = await backend.read_state(thread, checkpoint, namespace=namespace)
    return require(found, thread, checkpoint)


def _describe_version(version: Version, head: int | None) -> dict[str, Any]:
    ids = select(version, ("thread_id", "namespace", "checkpoint_id", "parent_id"))
    about = select(version, ("created_at", "metadata", "labels"))
    return ids | {"is_head": version.mark.sequence == head} | about


@add_command(threads, "history")
def print_history(
    thread: Thread,
    *,
    limit: Limit = 10,
    before: Annotated[str | None, typer.Option(help="Only versions older than this.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List all versions.")] = False,
    namespace: Namespace = "",
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """List versions, newest first, with the parent, the node and the changes of each.

    A version marked 'side' is neither the head nor one of its ancestors. --json:
    [{thread_id, namespace, checkpoint_id, parent_id, is_head, created_at, metadata, labels}].
    """

    async def read(backend: FullBackend) -> tuple[int, list[Node], Lines]:
        name, first = await find_named(backend, thread, before, namespace)
        which: dict[str, Any] = {"namespace": namespace, "limit": PAGE if everything else limit}
        cursor = None if first is None else Cursor(first, None)
        page = require(await read_graph(backend, name, cursor=cursor, **which), name)
        nodes, lines = page.nodes, Lines()
        while everything and page.next is not None:
            page = require(await read_graph(backend, name, cursor=page.next, **which), name)
            nodes += page.nodes
        for start in range(0, 0 if at.as_json else len(nodes), PAGE):
            lines |= await _describe(backend, [it.version for it in nodes[start : start + PAGE]])
        return page.head.mark.sequence, nodes, lines

    head, found, lines = at.ask(read)
    document = [_describe_version(it.version, head) for it in found]
    rows = (_make_history_row(it, lines, raw=raw) for it in found)
    columns = ("version", "parent", "", "by", "changes", "saved", "metadata")
    put_found(document, columns, rows, ids=columns[:2], as_json=at.as_json)


def _make_history_row(node: Node, lines: Lines, *, raw: bool) -> tuple[str | None, ...]:
    name, *others = make_cells(node.version, raw=raw)
    place = node.place if node.place in {"head", "side"} else ""
    return name, node.version.parent_id, place, *lines.get(name, ("", "")), *others


async def _describe(backend: FullBackend, versions: list[Version]) -> Lines:
    """Return the nodes and the one-line changes of versions, by their ids."""
    writers = await find_writers(backend, versions)
    found: dict[str, BriefChanges] = {}
    with suppress(IntegrityError):  # a damaged version has no changes; ``verify`` finds it
        found = await describe_versions(backend, versions)
    lines: Lines = {}
    for version in versions:
        nodes, changes = name_nodes(version, writers), found.get(version.checkpoint_id, "")
        lines[version.checkpoint_id] = ", ".join(nodes), str(changes)
    return lines


@add_command(threads)
def diff(
    thread: Thread,
    a: Annotated[str | None, typer.Argument(help="The older version.")] = None,
    b: Annotated[str | None, typer.Argument(help="The newer version; without it the head.")] = None,
    *,
    namespace: Namespace = "",
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """Show what changed between two versions; without any, what the head changed.

    Messages are compared as 'user: …', of a LangGraph thread the channels only. --json, always of
    the stored state: {thread_id, namespace, from, to, changes: [{what, path, before, after}]}; what
    is added, removed or changed; path is a list of keys and indices.
    """

    async def read(backend: FullBackend) -> tuple[Snapshot | None, Snapshot]:
        name = await find_thread_id(backend, thread)
        new = await _read(backend, name, b, namespace)
        old = a if a is not None else new.version.parent_id
        return None if old is None else await _read(backend, name, old, namespace), new

    old, new = at.ask(read)
    states = old.state if old else {}, new.state
    if not raw and not at.as_json:
        states = readable.make_readable(states[0]), readable.make_readable(states[1])
    changes = list(find_differences(*states))
    names = (old.version.checkpoint_id if old else None, new.version.checkpoint_id)
    if at.as_json:
        place = select(new.version, ("thread_id", "namespace"))
        between = {"from": names[0], "to": names[1]}
        put_json(place | between | {"changes": [it.as_json() for it in changes]})
        return
    print_line(f"{names[0] or 'nothing'} → {names[1]}: {format_count(len(changes), 'difference')}")
    for change in changes:
        show(_format_difference(change), _STYLES[change.what])


_STYLES = {"added": "green", "removed": "red", "changed": ""}


def _format_difference(change: Difference) -> str:
    path = escape(format_path(change.path))
    if change.what != "changed":
        value = change.after if change.what == "added" else change.before
        return f"{'+' if change.what == 'added' else '-'} {path}: {cut(render_json(value), LINE)}"
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) > LINE:
        before, after = cut_common_ends(before, after)
    return f"~ {path}: {cut(render_json(before), LINE)} → {cut(render_json(after), LINE)}"


@add_command(threads)
def search(
    words: Annotated[list[str], typer.Argument(help="Words; all must occur in the thread.")],
    *,
    limit: Limit = 10,
    at: TenantOptions,
) -> None:
    """Find threads by the words of their text, best first.

    --json: [{thread_id, checkpoint_id, score, snippet, updated_at, metadata}].
    """
    hits = at.ask(lambda it: it.find(" ".join(words), limit))
    names = ("thread_id", "checkpoint_id", "score", "snippet", "updated_at", "metadata")
    rows = ((it.thread_id, it.checkpoint_id, f"{it.score:.3g}", it.snippet) for it in hits)
    columns = ("thread", "version", "score", "text")
    document = [select(it, names) for it in hits]
    put_found(document, columns, rows, ids=columns[:2], as_json=at.as_json)


@add_command(threads)
def fork(
    thread: Thread,
    new: Annotated[str, typer.Argument(help="Id of the copy; it must not be in use.")],
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="Copy only this version and its ancestors.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace of --checkpoint.")] = "",
    at: TenantOptions,
) -> None:
    """Copy a thread under another id, completely or up to a version, which becomes the head.

    --json: {thread_id, checkpoint_id, versions}, of the copy.
    """

    async def forked(backend: FullBackend) -> tuple[str | None, int, str]:
        source, version = await find_named(backend, thread, checkpoint, namespace)
        found = await copy_version(backend, source, new, version, namespace=namespace)
        require(found, source, version)
        head = await backend.version(new, namespace=namespace)
        versions = len([it async for it in read_line(backend, new, namespace)])
        if head is None:
            return None, versions, describe_counts(await count_contents(backend, [new]))
        name = head.checkpoint_id
        return name, versions, f"{format_count(versions, 'version')}, the head is {name}"

    head, versions, summary = at.ask(forked)
    document = {"thread_id": new, "checkpoint_id": head, "versions": versions}
    put_outcome(document, f"{new}: {summary}", as_json=at.as_json)


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
