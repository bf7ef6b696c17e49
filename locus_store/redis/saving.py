"""Arguments of the scripts that write a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import versions
from locus_store.redis.lines import new_line_id, rest_of

if TYPE_CHECKING:
    from locus_store.redis.lines import NamespaceEdit
    from locus_store.types import Save


def append_of(save: Save, store: str) -> list[Any] | None:
    """The arguments of ``save``; ``None`` for what is no plain append."""
    expected, head = save.expected, None
    if expected is not None and expected.made_from and expected.made_from.store != store:
        expected = None  # a state from another database says nothing of this one
    if expected is None and save.parent_id is not None:
        return None
    if expected is not None and expected.made_from != expected.head:
        return None
    if save.is_root and (save.basis is not None or expected is not None):
        return None
    if expected is not None:
        head = expected.head
    change, basis = save.change, save.basis
    if basis is not None and (
        basis.store != store
        or change.frames is None
        or len(change.frames) > change.shape.state_bytes // 2
    ):
        basis = None
    lines = {it.line for it in (basis, head) if it is not None}
    if len(lines) > 1:
        return None
    return [
        *(save.thread_id, save.namespace, store, new_line_id(), ""),
        lines.pop() if lines else "",
        *((head.sequence, head.digest.hex()) if head else ("", "")),
        "1" if expected is None else "",
        "1" if save.is_root else "",
        *((basis.sequence, basis.digest.hex()) if basis else ("", "")),
        *(save.checkpoint_id, change.shape.digest.hex(), change.shape.state_bytes),
        change.frames if basis else change.whole(),
        rest_of(save.metadata, save.labels),
        *(save.writer or "", save.run or "", "" if save.keep_last is None else save.keep_last),
        *_time_to_live(save.ttl_seconds),
        *(versions.CHAIN_FACTOR, versions.CHAIN_ALLOWANCE, versions.RECORD_OVERHEAD),
        versions.HIDDEN_BATCH,
    ]


def applying(
    edit: NamespaceEdit, line_id: str, revision: str, operations: list[Any], token: str
) -> list[Any]:
    """The arguments of ``apply``; ``token`` tells later whether it was done."""
    return [
        *(edit.thread_id, edit.namespace, edit.store, edit.new_line_id(), "", line_id, revision),
        *_time_to_live(edit.ttl_seconds),
        "1" if edit.is_active else "",
        *operations,
        *(("line", 1, "edit", token) if token else ()),
    ]


def _time_to_live(seconds: float | None) -> tuple[Any, Any]:
    """In milliseconds, and how much later a thread may expire."""
    if seconds is None:
        return "", 0
    return f"{seconds * 1000:.3f}", int(min(seconds / 20, 60.0) * 1000)
