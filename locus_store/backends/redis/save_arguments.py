"""Arguments of the scripts that write a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store import versions
from locus_store.backends.redis.records import rest_of
from locus_store.versions.renewing import ttl_slack
from locus_store.versions.spaces import new_line_id

if TYPE_CHECKING:
    from locus_store.backends.redis.records import NamespaceEdit
    from locus_store.types import Mark, Save


NO_THREAD: Final = "no"
"""In place of ``'1'``, for a script that may not create the thread: it must exist."""


def appending(save: Save, store: str) -> list[Any] | None:
    """Return the arguments of ``save``; ``None`` for a save that is not a plain append.

    The script checks in the stored thread that the state is of this store: the server may have been
    emptied, or have lost the store's identity, since the state was read. A line's id is of one
    store only: it is random.
    """
    marks = [save.expected.made_from if save.expected else None, save.basis]
    append = versions.append_of(save, next((it.store for it in marks if it), store))
    if append is None:
        return None
    told = [
        *(save.thread_id, save.namespace, store, new_line_id()),
        "" if append.line is None else append.line,
        *_mark(append.head),
        "1" if append.is_free else "",
        "1" if save.is_root else "",
        *_mark(append.basis),
        *(save.checkpoint_id, save.change.shape.digest.hex(), append.added, append.most),
        *(save.writer or "", save.run or "", *_kept(save.keep_last)),
        *time_to_live(save.ttl_seconds),
    ]
    rest = rest_of(save.metadata, save.labels)
    makes = NO_THREAD if save.thread_must_exist else ""
    return [makes, append.payload, rest, "\0".join([*map(str, told), ""])]


def _kept(keep_last: int | None) -> tuple[Any, Any]:
    """Return the numbers of visible and of hidden versions to keep: removal works in batches."""
    return ("", "") if keep_last is None else (keep_last, max(keep_last, versions.HIDDEN_BATCH))


def _mark(mark: Mark | None) -> tuple[Any, str]:
    return (mark.sequence, mark.digest.hex()) if mark else ("", "")


def applying(
    edit: NamespaceEdit, line_id: str, revision: str, operations: list[Any], token: str
) -> list[Any]:
    """Return the arguments of ``apply``; ``token`` later shows whether it was done."""
    return [
        *(edit.thread_id, edit.namespace, edit.store, edit.new_line_id()),
        *(NO_THREAD if edit.old is not None and edit.old.exists else "", line_id, revision),
        *time_to_live(edit.ttl_seconds),
        "1" if edit.is_active else "",
        *operations,
        *(("line", 1, "edit", token) if token else ()),
    ]


def time_to_live(seconds: float | None) -> tuple[Any, Any]:
    """Return the time to live in milliseconds, and how much later a thread may expire."""
    if seconds is None:
        return "", 0
    return f"{seconds * 1000:.3f}", int(ttl_slack(seconds) * 1000)
