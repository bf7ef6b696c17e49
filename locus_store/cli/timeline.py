"""``locus-store threads blame``, ``bisect``, ``watch``, ``rewind``, ``report``, ``messages``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
import typer

from locus_store.backend import FullBackend
from locus_store.cli.opening import (
    Namespace,
    Thread,
    find_named,
    find_thread_id,
    find_version_id,
    require,
)
from locus_store.cli.output import (
    cut,
    format_count,
    note,
    print_line,
    print_said,
    put_found,
    put_json,
    put_line,
    put_outcome,
    select,
    tell_more,
)
from locus_store.cli.tenants import OneTenant, TenantOptions
from locus_store.cli.threads import CELL, Checkpoint, Limit, Raw, make_cells
from locus_store.errors import InvalidArgumentError, LocusStoreError, NotFoundError
from locus_store.open import Storage
from locus_store.timeline.bisect import (
    AT_PATH,
    TEXT,
    TYPES,
    Bisected,
    Condition,
    Turn,
    bisect as bisected,
    make_condition,
)
from locus_store.timeline.blame import Blame, Blamed, Origin, blame as blamed
from locus_store.timeline.graph import Writers, find_channel, find_newer, find_writers, list_nodes
from locus_store.timeline.paths import format_path, parse_path
from locus_store.timeline.readable import format_content, strip_tags
from locus_store.timeline.report import report as reported
from locus_store.timeline.rewind import rewind as rewound
from locus_store.types import Version
from locus_store.types.messages import LogSnapshot
from locus_store.values.frames import Folder

PLACE = ("thread_id", "namespace", "checkpoint_id")
"""Attributes of a version that say which one it is."""

STANDARD_ERROR = 2
"""Standard output is for the answer."""

SKIPPED, MOST_CODE = 125, 127
"""Exit codes of ``--run``: this one cannot be judged; the last one that is an answer."""


def _make_columns(version: Version, nodes: list[str], *, raw: bool) -> tuple[str, ...]:
    """Return the nodes, time and metadata of a version for a table."""
    return (", ".join(nodes), *make_cells(version, raw=raw)[1:])


def _name_version(place: Origin | Turn) -> str:
    """Return the version of a place; an older one may be no longer stored."""
    name = place.version.checkpoint_id
    return name if place.is_exact else f"in or before {name}"


def _select_fields(version: Version) -> dict[str, Any]:
    return select(version, ("checkpoint_id", "created_at", "metadata"))


def blame(
    thread: Thread,
    path: Annotated[
        str, typer.Argument(help='As in messages[3].content or messages[id="m7"].content.')
    ] = "",
    *,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    limit: Limit = 100,
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """Show which version introduced each value of a state, and the node that wrote it.

    For an object or a list, each part is shown with the last version that changed it. 'in or
    before' a version: an older one is no longer stored. --json: {thread_id, namespace,
    checkpoint_id, path, values: [{path, value, made, changed}]}; made and changed are
    {checkpoint_id, is_exact, created_at, metadata, nodes}.
    """
    wanted = parse_path(path)

    async def found(backend: FullBackend) -> tuple[Blame, list[Blamed], Writers]:
        name, version = await find_named(backend, thread, checkpoint, namespace)
        origins = require(await blamed(backend, name, version, namespace=namespace), name, version)
        if (whole := origins.find(wanted)) is None:
            raise NotFoundError(
                f"there is no {format_path(wanted)} in checkpoint "
                f"{origins.version.checkpoint_id!r}; 'locus-store threads blame' without a path "
                "shows the parts of the state"
            )
        values = origins.list_parts(wanted, limit=limit, is_raw=raw) or [whole]
        steps = (step.version for it in values for step in (it.made, it.changed))
        versions = {it.checkpoint_id: it for it in steps}
        return origins, values, await find_writers(backend, list(versions.values()))

    origins, values, tasks = at.ask(found)
    described = {"path": path, "values": [_describe_value(it, tasks) for it in values]}
    document = select(origins.version, PLACE) | described
    columns = ("value", "", "introduced in", "last change", "by", "saved", "metadata")
    rows = (_make_value_row(it, tasks, raw=raw) for it in values)
    put_found(document, columns, rows, ids=columns[:1], as_json=at.as_json)
    if len(values) == limit and not at.as_json:
        tell_more("a path to a part, or ")


def _make_value_row(value: Blamed, tasks: Writers, *, raw: bool) -> tuple[str, ...]:
    last = value.changed
    text = cut(value.value if raw else strip_tags(value.value), CELL)
    nodes = list_nodes(last.version, tasks, find_channel(value.path))
    saved = _make_columns(last.version, nodes, raw=raw)
    return format_path(value.query), text, _name_version(value.made), _name_version(last), *saved


def _describe_value(value: Blamed, tasks: Writers) -> dict[str, Any]:
    def origin(step: Origin) -> dict[str, Any]:
        nodes = list_nodes(step.version, tasks, find_channel(value.path))
        return _select_fields(step.version) | {"is_exact": step.is_exact, "nodes": nodes}

    steps = {"made": origin(value.made), "changed": origin(value.changed)}
    return {"path": list(value.path), "value": value.value} | steps


class Program:
    """The condition that a command fails for a state, as ``git bisect run`` has it.

    The command gets the state as JSON on standard input. It succeeds for a good one, ends with 125
    for one that it cannot judge, and with another code up to 127 for a bad one.
    """

    def __init__(self, command: str) -> None:
        self._command = command

    def answer(
        self, version: Version, folder: Folder, operations: list[list[Any]] | None
    ) -> bool | None:
        """Return whether the command fails.

        Raises:
            LocusStoreError: It was ended by a signal, or with a code above 127.
        """
        done = subprocess.run(  # noqa: S602  # the command of the person at the terminal
            self._command,
            shell=True,
            check=False,
            input=orjson.dumps(folder.get_state()),
            stdout=STANDARD_ERROR,
            env=os.environ | {"LOCUS_CHECKPOINT_ID": version.checkpoint_id},
        )
        if not 0 <= done.returncode <= MOST_CODE:
            raise LocusStoreError(
                f"--run ended with code {done.returncode} for version {version.checkpoint_id!r}; "
                "0 means good, 125 skipped, 1 to 127 bad"
            )
        return None if done.returncode == SKIPPED else done.returncode != 0


def _parse_condition(
    path: str | None, text: str | None, command: str | None, **at: Any
) -> Condition:
    """Return the one condition that the options name; refuse none, or several."""
    options = {key.replace("_", "-"): it for key, it in at.items()}
    given = {key: it for key, it in options.items() if it is not None and it is not False}
    others = [it for it in (text, command) if it is not None]
    if len(given) + len(others) != 1 or (path is None) is bool(given):
        raise InvalidArgumentError(
            f"name one condition: --path with one of {', '.join(f'--{it}' for it in AT_PATH)}, or "
            "--text, or --run"
        )
    if text is not None:
        return make_condition(TEXT, "", text)
    if command is not None:
        return Program(command)
    [(name, value)] = given.items()
    return make_condition(name, path or "", str(value))


def bisect(
    thread: Thread,
    *,
    path: Annotated[str | None, typer.Option(help="The path of the value to check.")] = None,
    equals: Annotated[
        str | None, typer.Option(metavar="JSON", help="The value equals this: JSON or a string.")
    ] = None,
    contains: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="The string, list or object contains this part, element or key."
        ),
    ] = None,
    exists: Annotated[bool, typer.Option("--exists", help="There is a value at the path.")] = False,
    longer_than: Annotated[
        int | None, typer.Option(min=0, help="The string, list or object is longer than this.")
    ] = None,
    of_type: Annotated[
        str | None, typer.Option("--type", help=f"The type of the value: {', '.join(TYPES)}.")
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="JSON",
            help='The value matches operators of the store, as {"$gt": 5}.',
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Any string of the state contains this.")] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="The command fails with the state on its standard input. 125: skip this version.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    namespace: Namespace = "",
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """Show the first version that meets a condition, and each later change of the result.

    Checks every version up to the head, or up to --checkpoint. --json: {thread_id, namespace,
    checkpoint_id, asked, skipped, first, turns}; first is a checkpoint id or null, turns are
    [{checkpoint_id, holds, is_exact, created_at, metadata, nodes}].
    """
    tests = {"equals": equals, "contains": contains, "exists": exists, "longer_than": longer_than}
    wanted = _parse_condition(path, text, command, **tests, type=of_type, filter=filter_)

    async def found(backend: FullBackend) -> tuple[Bisected, Writers]:
        name, version = await find_named(backend, thread, checkpoint, namespace)
        result = await bisected(backend, name, wanted, version, namespace=namespace)
        answers = require(result, name, version)
        return answers, await find_writers(backend, [it.version for it in answers.turns])

    answers, tasks = at.ask(found)
    first = answers.first
    document = {
        **select(answers.version, PLACE),
        **select(answers, ("asked", "skipped")),
        "first": first.version.checkpoint_id if first else None,
        "turns": [_turn_json(it, tasks) for it in answers.turns],
    }
    rows = (_turn_row(it, tasks, raw=raw) for it in answers.turns)
    columns = ("version", "from here on", "by", "saved", "metadata")
    put_found(document, columns, rows, ids=columns[:1], as_json=at.as_json)
    if at.as_json:
        return
    skipped = f", {answers.skipped:,} skipped" if answers.skipped else ""
    span = f"first in {first.version.checkpoint_id}" if first else "in none"
    print_line(f"The condition holds {span} of {format_count(answers.asked, 'version')}{skipped}.")


def _turn_row(turn: Turn, tasks: Writers, *, raw: bool) -> tuple[str, ...]:
    saved = _make_columns(turn.version, list_nodes(turn.version, tasks), raw=raw)
    return _name_version(turn), "holds" if turn.holds else "does not hold", *saved


def _turn_json(turn: Turn, tasks: Writers) -> dict[str, Any]:
    nodes = list_nodes(turn.version, tasks)
    answer = {"holds": turn.holds, "is_exact": turn.is_exact, "nodes": nodes}
    return _select_fields(turn.version) | answer


def watch(
    thread: Thread,
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many new versions.")
    ] = None,
    namespace: Namespace = "",
    raw: Raw = False,
    at: TenantOptions,
) -> None:
    """Print new versions as they are saved, until Ctrl-C.

    Reads no states. --json prints a line for each: {checkpoint_id, parent_id, created_at,
    metadata}.
    """

    def report(version: Version) -> None:
        if at.as_json:
            put_line(_select_fields(version) | {"parent_id": version.parent_id})
        else:
            print_line("  ".join(filter(None, make_cells(version, raw=raw))))
        sys.stdout.flush()

    async def watched(backend: FullBackend) -> None:
        name = await find_thread_id(backend, thread)
        found = _iterate_newer(backend, name, namespace, interval)
        left = count
        async for version in found:
            report(version)
            left = None if left is None else left - 1
            if left == 0:
                await found.aclose()

    at.ask(watched)


async def _iterate_newer(
    backend: FullBackend, thread: str, namespace: str, interval: float
) -> AsyncGenerator[Version]:
    """Yield the versions that are saved from now on."""
    newest = require(await backend.history(thread, namespace=namespace, limit=1), thread)
    sequence = newest[0].mark.sequence
    while True:
        for version in await find_newer(backend, thread, sequence, namespace=namespace) or ():
            yield version
            sequence = version.mark.sequence
        await asyncio.sleep(interval)


def rewind(
    thread: Thread,
    checkpoint: Annotated[str, typer.Argument(help="The version to return to.")],
    *,
    head: Annotated[
        str | None, typer.Option(help="The head that you saw; another one is a conflict.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A LangGraph function, or node of Send, that is finished; may be repeated. It is "
            "needed where its name is not stored."
        ),
    ] = None,
    run_again: Annotated[
        bool, typer.Option("--run-again", help="Finished tasks without a name may run again.")
    ] = False,
    namespace: Namespace = "",
    at: TenantOptions,
) -> None:
    """Save the state of an old version as the new head, with its pending writes; remove nothing.

    Agents and graphs continue from it. Of an interrupted LangGraph step, finished tasks keep their
    results; if some of them would run again, the command names them and saves nothing. The effects
    that ran since are named: they are not undone. --json: {thread_id, namespace, checkpoint_id,
    from, effects}.
    """

    async def saved(backend: FullBackend) -> tuple[str, str, str, list[str]]:
        found, version = await find_named(backend, thread, checkpoint, namespace)
        there = await backend.version(found, version, namespace=namespace)
        old = require(there, found, version).checkpoint_id
        name = await rewound(
            backend,
            found,
            old,
            namespace=namespace,
            expected_head=await find_version_id(backend, found, head, namespace),
            names=task or (),
            runs_again=run_again,
        )
        effects = Storage(backend).checkpointer().effects
        since = await effects(found, since=old, namespace=namespace)
        return found, old, name, [it.key for it in since]

    thread, checkpoint, name, since = at.ask(saved)
    document = {"thread_id": thread, "namespace": namespace, "checkpoint_id": name}
    text = f"{thread}: the head is {name}, with the state of {checkpoint}"
    put_outcome(document | {"from": checkpoint, "effects": since}, text, as_json=at.as_json)
    if since:
        note(f"These effects ran since, and are not undone: {', '.join(map(repr, since))}.")


def report(
    thread: Thread, *, checkpoint: Checkpoint = None, namespace: Namespace = "", at: OneTenant
) -> None:
    """Print a report to attach to a bug, as JSON: structure, ids, roles, sizes and blame.

    Each string is replaced by its length and a hash, whose key is random and not kept, and each
    number by its kind. Keys that begin with a small letter are reported unchanged. {backend,
    thread_id, namespace, checkpoint_id, state_bytes, versions, older_versions, values,
    is_complete}.
    """

    async def found(backend: FullBackend) -> dict[str, Any]:
        name, version = await find_named(backend, thread, checkpoint, namespace)
        report = await reported(backend, name, version, namespace=namespace)
        return require(report, name, version)

    put_json(at.ask(found))


MESSAGE_FIELDS = ("message_id", "role", "created_at", "metadata", "content")


def print_messages(
    thread: Thread,
    *,
    namespace: Namespace = "",
    newest: Annotated[int, typer.Option(min=0, help="Only the newest so many.")] = 100,
    at: TenantOptions,
) -> None:
    """Print the messages of a thread's log, oldest first, as 'role: text'.

    --json: [{message_id, role, created_at, metadata, content}].
    """
    found, others = at.ask(lambda it: _read_log(it, thread, namespace, newest))
    if at.as_json:
        put_json([select(it, MESSAGE_FIELDS) for it in found.messages])
        return
    for message in found.messages:
        print_said(f"{message.role}: {format_content(message.content)}")
    if found.info.count > len(found.messages):
        note(f"The log has {found.info.count:,} messages: see --newest.")
    if others and not namespace:
        note(f"The thread has other logs: --namespace {', '.join(others)}.")


async def _read_log(
    backend: FullBackend, thread: str, namespace: str, newest: int
) -> tuple[LogSnapshot, list[str]]:
    """Return the newest messages of a log, and the namespaces of the other logs of the thread."""
    log = Storage(backend).messages()
    thread = await find_thread_id(backend, thread)
    found = await log.read(thread, namespace=namespace, newest=newest)
    logs = await log.logs(thread)
    others = [repr(it.namespace) for it in logs if it.namespace != namespace]
    if found is None:
        if not others:
            raise NotFoundError(
                f"thread {thread!r} has no message log; 'locus-store threads list' shows the"
                " threads"
            )
        raise NotFoundError(
            f"thread {thread!r} has no message log in the namespace {namespace!r}; its logs"
            f" have --namespace {', '.join(others)}"
        )
    return found, others
