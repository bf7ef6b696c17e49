"""The rules of a line: saves and their conflicts, deletions, and reading.

Written once, over the few primitives of ``Lines``. A backend implements those inside one
transaction that holds the line's lock, so that the line does not change while a rule runs.
Rules and their evidence: docs/concepts.md, docs/decisions.md.
"""

from locus_store.versions.appending import Append, append_of, takes
from locus_store.versions.lines import (
    CHAIN_ALLOWANCE,
    CHAIN_FACTOR,
    CHANNELS,
    HIDDEN_BATCH,
    JSON_WRITE,
    REBUILT,
    RECORD_OVERHEAD,
    Line,
    Lines,
    Record,
    Records,
    archived,
    head_of,
    is_visible,
    mark_of,
    record_of,
)
from locus_store.versions.pending import (
    archive_order,
    channel_in,
    current,
    in_order,
    put_writes,
    whole_write,
    winning,
)
from locus_store.versions.reading import (
    basis_of,
    cursor,
    made_of,
    replay,
    state_alone,
    state_of,
    target,
    visible_texts,
)
from locus_store.versions.removing import clear, forget, free, prune, remove_named, settle, vacuum
from locus_store.versions.saving import (
    append,
    head_moved,
    is_small,
    new_checkpoint_id,
    require_head,
    save,
)

__all__ = [
    "CHAIN_ALLOWANCE",
    "CHAIN_FACTOR",
    "CHANNELS",
    "HIDDEN_BATCH",
    "JSON_WRITE",
    "REBUILT",
    "RECORD_OVERHEAD",
    "Append",
    "Line",
    "Lines",
    "Record",
    "Records",
    "append",
    "append_of",
    "archive_order",
    "archived",
    "basis_of",
    "channel_in",
    "clear",
    "current",
    "cursor",
    "forget",
    "free",
    "head_moved",
    "head_of",
    "in_order",
    "is_small",
    "is_visible",
    "made_of",
    "mark_of",
    "new_checkpoint_id",
    "prune",
    "put_writes",
    "record_of",
    "remove_named",
    "replay",
    "require_head",
    "save",
    "settle",
    "state_alone",
    "state_of",
    "takes",
    "target",
    "vacuum",
    "visible_texts",
    "whole_write",
    "winning",
]
