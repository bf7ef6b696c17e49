"""Forms that change a thread: fork, rewind and delete.

A form says what it does, and carries the head that its reader saw; a head that moved is a conflict.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from locus_store.backend import StoresThreads, needs
from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError
from locus_store.inspector.escapes import visible
from locus_store.inspector.visits import Page, Redirect
from locus_store.timeline.lineage import PAGE, lineage
from locus_store.timeline.rewind import prepared
from locus_store.timeline.rewind import rewind as rewound
from locus_store.transfer.building import fork as forked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.inspector.visits import Answer, Visit
    from locus_store.types import Mark, Version

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


DAMAGED: Final = _Head("(damaged)", 0, None)


async def rewind(visit: Visit) -> Answer:
    """Save an old state as the new head."""
    backend, name = visit.parts.threads, visit.query.required("version")
    version, head = await _version(visit, name), await _head(visit)
    place = {"thread_id": visit.thread, "checkpoint_id": name, "namespace": visit.namespace}
    if visit.method == "POST":
        await _require_head(visit, head)
        names = [it.strip() for it in visit.query.text("names").split(",")]
        runs_again = bool(visit.query.number("runs_again"))
        async with visit.jobs.paced():
            made = await rewound(
                backend,
                **place,
                expected_head=head.checkpoint_id,
                names=names,
                runs_again=runs_again,
            )
        _audit(visit, "rewound", version=name)
        return Redirect(visit.to("version", version=made))
    newer = await _count(visit, visit.namespace, since=version.mark.sequence)
    async with visit.jobs.paced():
        found = await prepared(backend, **place)
    will = [
        f"The state of {visible(name)} is saved as the new head, with its pending writes.",
        f"The versions behind it ({newer}) become a side branch. Nothing is removed.",
        "An agent or a graph that runs next continues from this state.",
    ]
    if not found.repeated:
        return _form(visit, "rewind", "Rewind", will, head, version=name)
    will.append(f"These run again, although they are finished: {visible(found.told())}.")
    label = "Names of these functions or nodes, with commas between; those run again no more"
    field = {"name": "names", "label": label, "is_optional": True}
    return _form(visit, "rewind", "Rewind", will, head, field=field, version=name, runs_again=1)


async def fork(visit: Visit) -> Answer:
    """Copy a version and its ancestors, or the whole thread, as another thread."""
    backend, name = visit.parts.threads, visit.query.optional("version")
    head = await _head(visit)
    if visit.method == "POST":
        await _require_head(visit, head)
        new = visit.query.required("new_thread")
        copied = await forked(backend, visit.thread, new, name, namespace=visit.namespace)
        visit.require(copied or None, name)
        _audit(visit, "forked", version=name, copy=new)
        return Redirect(visit.links.to("version", thread=new, namespace=visit.namespace))
    will = ["The copy has an id of its own. This thread stays as it is."]
    if name is None:
        will[:0] = [f"All of the thread is copied: {await _contents(visit)}."]
    else:
        found = await lineage(backend, visit.thread, name, namespace=visit.namespace)
        way = visit.require(found, name)
        will[:0] = [f"{visible(name)} and its ancestors are copied: {_counted(len(way.versions))}."]
    field = {"name": "new_thread", "label": "Id of the new thread"}
    return _form(visit, "fork", "Fork", will, head, field=field, version=name)


async def delete(visit: Visit) -> Answer:
    """Delete a version, or the whole thread."""
    name = visit.query.optional("version")
    head = await _head(visit)
    if visit.method == "POST":
        await _require_head(visit, head)
        return await _deleted(visit, name, head)
    if name is None:
        will = [f"All of the thread is deleted: {await _contents(visit)}, and its messages."]
        label = f"Type the id of the thread to delete it: {visible(visit.thread)}"
        field = {"name": "typed", "label": label}
    else:
        await _version(visit, name)
        will = [f"{visible(name)} is deleted: 1 version, and its pending writes."]
        field = None
    will.append("This cannot be undone.")
    return _form(visit, "delete", "Delete", will, head, field=field, version=name)


async def _deleted(visit: Visit, name: str | None, head: _Head) -> Redirect:
    backend = visit.parts.threads
    if name is not None:
        removed = await backend.remove(visit.thread, [name], namespace=visit.namespace)
        visit.require(removed or None, name)
        _audit(visit, "deleted a version of", version=name)
        has_others = await backend.version(visit.thread, namespace=visit.namespace) is not None
        return Redirect(visit.to("timeline") if has_others else visit.links.to("threads"))
    if visit.query.text("typed") not in {visit.thread, visible(visit.thread)}:
        raise InvalidArgumentError(
            "the id that was typed is not that of the thread; nothing was deleted"
        )
    await backend.remove_thread(visit.thread, head=head.mark, namespace=visit.namespace)
    _audit(visit, "deleted")
    return Redirect(visit.links.to("threads"))


def _form(
    visit: Visit,
    action: str,
    verb: str,
    will: list[str],
    head: _Head,
    *,
    field: Mapping[str, object] | None = None,
    version: str | None,
    **more: int,
) -> Page:
    shown = {"version": version, "head": head.checkpoint_id, "sequence": head.sequence, **more}
    values: dict[str, Any] = {
        "version": version,
        "head": head.checkpoint_id,
        "action": action,
        "verb": verb,
        "will": will,
        "field": field and {"is_optional": False, **field},
        "at": visit.hidden(**shown),
    }
    return visit.make_page("change", f"{verb} {visible(version or visit.thread)}", values)


async def _head(visit: Visit) -> _Head:
    """Return the head; of a damaged one its place only, so that its thread can be deleted."""
    try:
        found = await visit.parts.threads.version(visit.thread, namespace=visit.namespace)
    except IntegrityError:
        return DAMAGED
    head = visit.require(found)
    return _Head(head.checkpoint_id, head.mark.sequence, head.mark)


async def _version(visit: Visit, name: str) -> Version:
    found = await visit.parts.threads.version(visit.thread, name, namespace=visit.namespace)
    return visit.require(found, name)


async def _require_head(visit: Visit, head: _Head) -> None:
    """Refuse a form whose reader saw another head."""
    seen = visit.query.required("head")
    if head[:2] != (seen, visit.query.number("sequence")):
        raise ConflictError(
            f"the head is {head.checkpoint_id!r} now, and not the {seen!r} that this form was "
            "opened with; nothing was changed. Look at the newer versions, then open the form again"
        )


async def _contents(visit: Visit) -> str:
    """Return the numbers of versions and namespaces of the thread."""
    names = await needs(visit.parts.threads, StoresThreads).namespaces(visit.thread)
    try:
        told = _counted(sum([await _number(visit, it) for it in names]))
    except IntegrityError:
        told = UNCOUNTED
    return told if len(names) == 1 else f"{told} in {len(names):,} namespaces"


async def _count(visit: Visit, namespace: str, *, since: int) -> str:
    try:
        return _counted(await _number(visit, namespace, since))
    except IntegrityError:
        return UNCOUNTED


async def _number(visit: Visit, namespace: str, since: int = 0) -> int:
    """Return the number of versions of a line above a sequence."""
    number, before = 0, None
    while page := await visit.parts.threads.history(
        visit.thread, namespace=namespace, limit=PAGE, before=before
    ):
        above = sum(it.mark.sequence > since for it in page)
        number, before = number + above, page[-1].checkpoint_id
        if above < len(page) or number >= COUNTED:
            break
    return number


def _counted(number: int) -> str:
    if number >= COUNTED:
        return f"at least {COUNTED:,} versions"
    return f"{number:,} version{'' if number == 1 else 's'}"


def _audit(visit: Visit, action: str, **told: str | None) -> None:
    found = {"caller": visit.viewer.caller.name, "tenant": visit.tenant}
    found |= {"namespace": visit.namespace, **told}
    places = ", ".join(f"{name} {it!r}" for name, it in found.items() if it is not None)
    log.info("%s thread %r: %s", action, visit.thread, places)
