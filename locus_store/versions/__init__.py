"""The rules of a line: saves and their conflicts, deletions, and reading.

Written once, over the few primitives of ``Lines``. A backend implements those inside one
transaction that holds the line's lock, so that the line does not change while a rule runs.
Rules and their evidence: docs/concepts.md, docs/decisions/.
"""

from locus_store.versions.lines import (
    CHAIN_ALLOWANCE as CHAIN_ALLOWANCE,
    CHAIN_FACTOR as CHAIN_FACTOR,
    CHANNELS as CHANNELS,
    HIDDEN_BATCH as HIDDEN_BATCH,
    JSON_WRITE as JSON_WRITE,
    REBUILT as REBUILT,
    RECORD_OVERHEAD as RECORD_OVERHEAD,
    Line as Line,
    Lines as Lines,
    PutWrites as PutWrites,
    Record as Record,
    archive_record as archive_record,
    expand_write as expand_write,
    find_channel as find_channel,
    find_for_writes as find_for_writes,
    find_head as find_head,
    is_visible as is_visible,
    make_archive_sort_key as make_archive_sort_key,
    make_record as make_record,
    make_write_sort_key as make_write_sort_key,
    put_writes as put_writes,
    select_current as select_current,
)
from locus_store.versions.reading import (
    cursor as cursor,
    decode_state as decode_state,
    decode_state_alone as decode_state_alone,
    find_basis as find_basis,
    has_digest as has_digest,
    iterate_visible_texts as iterate_visible_texts,
    keep_state as keep_state,
    name_version_in_errors as name_version_in_errors,
    select_records as select_records,
    target as target,
)
from locus_store.versions.removing import (
    clear as clear,
    prune as prune,
    remove_named as remove_named,
    settle as settle,
    vacuum as vacuum,
)
from locus_store.versions.saving import (
    Append as Append,
    append as append,
    can_append as can_append,
    generate_checkpoint_id as generate_checkpoint_id,
    is_small as is_small,
    make_append as make_append,
    make_no_thread_result as make_no_thread_result,
    require_head as require_head,
    require_same as require_same,
    save as save,
)
