"""Forms that change a thread: fork, rewind and delete.

A form says what it does, and carries the head that its reader saw; a head that moved is a conflict.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from locus_store.backend import StoresThreads, needs
from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError
from locus_store.inspector.escapes import escape
from locus_store.inspector.page_requests import Answer, Page, PageRequest, Redirect
from locus_store.timeline.ancestry import find_ancestry, read_line
from locus_store.timeline.rewind import prepare, rewind as rewound
from locus_store.transfer.building import fork as forked
from locus_store.types import Mark

log: Final = logging.getLogger("locus_store.inspector.changes")
"""INFO each change, without content. ``serve`` and ``inspect`` print it."""

COUNTED: Final = 10_000
"""Versions that are counted, in pages without states."""

UNCOUNTED: Final = "an unknown number of versions, some of them damaged"


class _Head(NamedTuple):
    checkpoint_id: str
    sequence: int
    mark: Mark | None
    """``None`` for a damaged one: its thread can be deleted without a comparison."""


async def rewind(request: PageRequest) -> Answer:
    """Save an old state as the new head."""
    backend, name = request.parts.threads, request.query.require("version")
    version, head = await request.find_version(name), await _read_head(request)
    place = {"thread_id": request.thread, "checkpoint_id": name, "namespace": request.namespace}
    if request.method == "POST":
        await _require_head(request, head)
        names = [it.strip() for it in request.query.get_text("names").split(",")]
        runs_again = bool(request.query.get_number("runs_again"))
        async with request.jobs.wait_for_turn():
            made = await rewound(
                backend,
                **place,
                expected_head=head.checkpoint_id,
                names=names,
                runs_again=runs_again,
            )
        _audit(request, "rewound", version=name)
        return Redirect(request.to("version", version=made))
    newer = await _count(request, request.namespace, since=version.mark.sequence)
    async with request.jobs.wait_for_turn():
        found = await prepare(backend, **place)
    will = [
        f"The state of {escape(name)} is saved as the new head, with its pending writes.",
        f"The versions behind it ({newer}) become a side branch. Nothing is removed.",
        "An agent or a graph that runs next continues from this state.",
    ]
    if not found.repeated:
        return _make_form(request, "rewind", will, head, version=name)
    will.append(f"These run again, although they are finished: {escape(found.describe())}.")
    label = "Names of these functions or nodes, with commas between; those run again no more"
    field = {"name": "names", "label": label, "is_optional": True}
    return _make_form(request, "rewind", will, head, field=field, version=name, runs_again=1)


async def fork(request: PageRequest) -> Answer:
    """Copy a version and its ancestors, or the whole thread, as another thread."""
    backend, name = request.parts.threads, request.query.get_optional("version")
    head = await _read_head(request)
    if request.method == "POST":
        await _require_head(request, head)
        new = request.query.require("new_thread")
        copied = await forked(backend, request.thread, new, name, namespace=request.namespace)
        request.require(copied or None, name)
        _audit(request, "forked", version=name, copy=new)
        return Redirect(request.links.to("version", thread=new, namespace=request.namespace))
    will = ["The copy has an id of its own. This thread stays as it is."]
    if name is None:
        will[:0] = [f"All of the thread is copied: {await _describe_contents(request)}."]
    else:
        found = await find_ancestry(backend, request.thread, name, namespace=request.namespace)
        versions = request.require(found, name).versions
        will[:0] = [f"{escape(name)} and its ancestors are copied: {_format_count(len(versions))}."]
    field = {"name": "new_thread", "label": "Id of the new thread"}
    return _make_form(request, "fork", will, head, field=field, version=name)


async def delete(request: PageRequest) -> Answer:
    """Delete a version, or the whole thread."""
    name = request.query.get_optional("version")
    head = await _read_head(request)
    if request.method == "POST":
        await _require_head(request, head)
        return await _delete(request, name, head)
    if name is None:
        contents = await _describe_contents(request)
        will = [f"All of the thread is deleted: {contents}, and its messages."]
        label = f"Type the id of the thread to delete it: {escape(request.thread)}"
        field = {"name": "typed", "label": label}
    else:
        await request.find_version(name)
        will = [f"{escape(name)} is deleted: 1 version, and its pending writes."]
        field = None
    will.append("This cannot be undone.")
    return _make_form(request, "delete", will, head, field=field, version=name)


async def _delete(request: PageRequest, name: str | None, head: _Head) -> Redirect:
    backend = request.parts.threads
    if name is not None:
        removed = await backend.remove(request.thread, [name], namespace=request.namespace)
        request.require(removed or None, name)
        _audit(request, "deleted a version of", version=name)
        has_others = await backend.version(request.thread, namespace=request.namespace) is not None
        return Redirect(request.to("timeline") if has_others else request.links.to("threads"))
    if request.query.get_text("typed") not in {request.thread, escape(request.thread)}:
        raise InvalidArgumentError(
            "the id that was typed is not that of the thread; nothing was deleted"
        )
    await backend.remove_thread(request.thread, head=head.mark, namespace=request.namespace)
    _audit(request, "deleted")
    return Redirect(request.links.to("threads"))


def _make_form(
    request: PageRequest,
    action: str,
    will: list[str],
    head: _Head,
    *,
    field: Mapping[str, object] | None = None,
    version: str | None,
    **more: int,
) -> Page:
    verb = action.capitalize()
    shown = {"version": version, "head": head.checkpoint_id, "sequence": head.sequence, **more}
    values: dict[str, Any] = {
        "version": version,
        "head": head.checkpoint_id,
        "action": action,
        "verb": verb,
        "will": will,
        "field": field and {"is_optional": False, **field},
        "at": request.encode_place(**shown),
    }
    return request.make_page("change", f"{verb} {escape(version or request.thread)}", values)


async def _read_head(request: PageRequest) -> _Head:
    """Return the head; of a damaged one its place only, so that its thread can be deleted."""
    try:
        head = await request.find_version()
    except IntegrityError:
        return _Head("(damaged)", 0, None)
    return _Head(head.checkpoint_id, head.mark.sequence, head.mark)


async def _require_head(request: PageRequest, head: _Head) -> None:
    """Refuse a form whose reader saw another head."""
    seen = request.query.require("head")
    if head[:2] != (seen, request.query.get_number("sequence")):
        raise ConflictError(
            f"the head is {head.checkpoint_id!r} now, and not the {seen!r} that this form was "
            "opened with; nothing was changed. Look at the newer versions, then open the form again"
        )


async def _describe_contents(request: PageRequest) -> str:
    """Return the numbers of versions and namespaces of the thread."""
    names = await needs(request.parts.threads, StoresThreads).namespaces(request.thread)
    summary = await _count(request, *names)
    return summary if len(names) == 1 else f"{summary} in {len(names):,} namespaces"


async def _count(request: PageRequest, *namespaces: str, since: int = 0) -> str:
    try:
        return _format_count(sum([await _count_versions(request, it, since) for it in namespaces]))
    except IntegrityError:
        return UNCOUNTED


async def _count_versions(request: PageRequest, namespace: str, since: int) -> int:
    """Return the number of versions of a line above a sequence."""
    number = 0
    async for version in read_line(request.parts.threads, request.thread, namespace):
        if version.mark.sequence <= since or number >= COUNTED:
            break
        number += 1
    return number


def _format_count(number: int) -> str:
    if number >= COUNTED:
        return f"at least {COUNTED:,} versions"
    return f"{number:,} version{'' if number == 1 else 's'}"


def _audit(request: PageRequest, action: str, **details: str | None) -> None:
    found = {"caller": request.viewer.caller.name, "tenant": request.tenant}
    found |= {"namespace": request.namespace, **details}
    places = ", ".join(f"{name} {it!r}" for name, it in found.items() if it is not None)
    log.info("%s thread %r: %s", action, request.thread, places)
