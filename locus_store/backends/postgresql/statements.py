"""PostgreSQL's fast statements as text for the driver: a save, a group, a load, a list.

Each is one round trip in autocommit. They do what the rules in ``versions`` say, for the cases
that are nearly all; what they refuse is decided by those rules, in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from locus_store.backends.postgresql import contents
from locus_store.backends.postgresql.policies import MARK, guard
from locus_store.backends.postgresql.save_parameters import (
    OF_ROW,
    LoneSave,
    RecordedSave,
    SaveGroup,
    SaveRow,
    render_parameters,
)
from locus_store.runtime.notebooks import Table
from locus_store.sql.columns.dialect_columns import load_json
from locus_store.sql.schema.status import ONE_SHARD
from locus_store.sql.schema.tables import Tables
from locus_store.types import Mark, Stored, Version
from locus_store.types.thread_info import UserIdType
from locus_store.versions import (
    CHAIN_ALLOWANCE,
    CHAIN_FACTOR,
    HIDDEN_BATCH,
    RECORD_OVERHEAD,
    make_write_sort_key,
    name_version_in_errors,
)

_GROUP: Final = """
WITH input AS MATERIALIZED (
  -- In the database that was opened, with the index and the layout of shards that it had then.
  SELECT * FROM unnest({arrays}) i({fields}) WHERE $3 = (SELECT count(*) FROM {settings} s
    WHERE (s.name = 'store_id' AND s.value = $2) OR s.name = 'full_text_index'
      OR (s.name = 'shards' AND s.value <> $4 AND s.value NOT LIKE '{one_shard}'))
    AND {turn_of_input}),
{appends}-- A new line of a live thread: shared, so that saves of its other lines do not wait. A
-- deletion does, and finds the line.
there AS MATERIALIZED (  -- LATERAL: as a join, without statistics, it read the whole tenant.
  SELECT t.* FROM (SELECT DISTINCT i.thread_id FROM input i WHERE i.line IS NULL) i
  CROSS JOIN LATERAL (
    SELECT t.thread, t.thread_id, t.active_at, t.expires_at, {does_exist} AS does_exist
    FROM {threads} t WHERE t.tenant = $1 AND t.thread_id = i.thread_id
      AND (t.expires_at IS NULL OR t.expires_at > statement_timestamp())
    FOR KEY SHARE SKIP LOCKED) t),
active AS (
  SELECT a.thread, max(a.ttl) AS ttl, max(a.slack) AS slack FROM ({active_appends}
    SELECT t.thread, i.ttl, i.slack FROM input i JOIN there t ON t.thread_id = i.thread_id
    WHERE i.line IS NULL AND i.owner IS NULL AND (t.does_exist OR NOT i.thread_must_exist)
      AND (t.active_at <> {minute} OR (i.ttl IS NOT NULL AND {is_late}))) a
  GROUP BY a.thread),
ordered AS MATERIALIZED (  -- Two statements may touch the same threads.
  SELECT t.thread FROM {threads} t WHERE t.thread IN (SELECT w.thread FROM active w)
  ORDER BY t.thread_id COLLATE "C" FOR NO KEY UPDATE),
touched AS (
  UPDATE {threads} t SET active_at = {minute},
    expires_at = CASE WHEN w.ttl IS NOT NULL AND {is_late_touched}
      THEN {expiry_touched} ELSE t.expires_at END
  FROM active w JOIN ordered o ON o.thread = w.thread WHERE t.thread = w.thread),
new_threads AS (
  INSERT INTO {threads} AS t (tenant, thread_id, user_id, name, metadata, created_at, active_at,
    expires_at)
  SELECT DISTINCT ON (i.thread_id COLLATE "C") $1, i.thread_id, i.owner{user_type}, i.thread_name,
    i.thread_metadata::jsonb, statement_timestamp(), {minute},
    max({expiry}) OVER (PARTITION BY i.thread_id COLLATE "C")
  FROM input i WHERE i.line IS NULL AND NOT i.thread_must_exist
    AND i.thread_id NOT IN (SELECT t.thread_id FROM there t)
  ORDER BY i.thread_id COLLATE "C", i.owner IS NULL, i.namespace COLLATE "C"
  ON CONFLICT (tenant, thread_id) DO NOTHING
  RETURNING t.thread_id),
new_places AS MATERIALIZED (
  SELECT i.* FROM input i JOIN there t ON t.thread_id = i.thread_id
  WHERE i.line IS NULL AND i.owner IS NULL
    AND (t.does_exist OR NOT i.thread_must_exist)
  UNION ALL
  SELECT i.* FROM input i JOIN new_threads t ON t.thread_id = i.thread_id
  WHERE i.line IS NULL AND (i.owner IS NULL OR i.namespace COLLATE "C" <= ALL (
    SELECT o.namespace FROM input o WHERE o.thread_id = i.thread_id AND o.owner IS NOT NULL))),
written AS MATERIALIZED (  -- Lines that have pending writes alone.
  SELECT l.* FROM new_places i CROSS JOIN LATERAL (
    SELECT l.line, l.thread_id, l.namespace FROM {lines} l
    WHERE l.tenant = $1 AND l.thread_id = i.thread_id AND l.namespace = i.namespace
      AND l.head IS NULL AND l.last_sequence = 0
    FOR NO KEY UPDATE SKIP LOCKED) l),
begun AS (
  UPDATE {lines} l SET head = 1, open_chain = 1, open_bytes = length(i.payload) + {overhead},
    floor = CASE WHEN i.keep_last IS NULL THEN 0 ELSE 1 END, last_sequence = 1, writer = i.writer,
    run = i.run, updated_at = statement_timestamp()
  FROM new_places i JOIN written w ON w.thread_id = i.thread_id AND w.namespace = i.namespace
  WHERE l.line = w.line
  RETURNING l.line, l.thread_id, l.namespace),
new_lines AS (
  INSERT INTO {lines} (tenant, thread_id, namespace, head, open_chain, open_bytes, floor,
    last_sequence, writer, run, updated_at)
  SELECT $1, i.thread_id, i.namespace, 1, 1, length(i.payload) + {overhead},
    CASE WHEN i.keep_last IS NULL THEN 0 ELSE 1 END, 1, i.writer, i.run, statement_timestamp()
  FROM new_places i WHERE (SELECT l.line FROM {lines} l
    WHERE l.tenant = $1 AND l.thread_id = i.thread_id AND l.namespace = i.namespace) IS NULL
  ORDER BY i.thread_id COLLATE "C", i.namespace COLLATE "C"
  ON CONFLICT (tenant, thread_id, namespace) DO NOTHING
  RETURNING line, thread_id, namespace),
won AS MATERIALIZED ({won_appends}
  SELECT n.line, 1 AS sequence, 1 AS chain, NULL::bigint AS parent, {shown} FROM input w
  JOIN (SELECT * FROM new_lines UNION ALL SELECT * FROM begun) n
    ON n.thread_id = w.thread_id AND n.namespace = w.namespace
  WHERE w.line IS NULL){indexed},
kept AS (
  INSERT INTO {checkpoints} (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata,
    labels, created_at, text, payload)
  SELECT w.line, w.sequence, w.chain, w.parent, w.checkpoint_id, w.digest, 0, w.metadata::jsonb,
    w.labels::jsonb, statement_timestamp(), w.added, w.payload FROM won w){audited}
SELECT thread_id, namespace, line, sequence FROM won WHERE {mark}
"""

# Of a group with saves of existing lines. A group of first saves opens no partition to look.
_APPENDS: Final = """
locked AS MATERIALIZED (
  -- Nobody waits here for a line that is held for long: its save is left to a transaction.
  -- IS TRUE: without statistics, an index on the tenant looked better than one on the line.
  SELECT l.line, l.thread_id, l.namespace, l.head, l.open_chain, l.open_bytes, l.floor,
    l.last_sequence, l.writer, l.run
  FROM {lines} l WHERE l.line = ANY ({given}) AND (l.tenant = $1) IS TRUE AND l.head IS NOT NULL
  ORDER BY l.line FOR NO KEY UPDATE SKIP LOCKED),
looked AS MATERIALIZED (
  SELECT i.*, l.head, l.open_chain, l.open_bytes, l.last_sequence + 1 AS sequence,
    CASE WHEN i.keep_last IS NULL THEN l.floor
      WHEN i.keep_last = 1 THEN l.last_sequence + 1
      ELSE greatest(l.floor, (SELECT c.sequence FROM {checkpoints} c WHERE c.line = i.line
        ORDER BY c.sequence DESC OFFSET i.keep_last - 2 LIMIT 1)) END AS floor,
    -- The live thread's key, negative where its time of activity is to be set.
    (SELECT CASE WHEN t.expires_at <= statement_timestamp() THEN NULL
        WHEN t.active_at <> {minute} OR (i.ttl IS NOT NULL AND {is_late})
        THEN -t.thread ELSE t.thread END
      FROM {threads} t WHERE t.tenant = $1 AND t.thread_id = i.thread_id) AS thread
  FROM input i JOIN locked l ON l.line = i.line
  WHERE l.thread_id = i.thread_id AND l.namespace = i.namespace
    AND (i.is_free OR l.writer = i.writer OR (i.writer IS NULL AND l.run = i.run)
      OR (l.head = i.expected AND i.expected_digest = {digest_of_expected}))
    AND (i.basis IS NULL OR (l.head = i.basis AND l.open_chain IS NOT NULL
      AND l.open_bytes + length(i.payload) + {overhead} <= {factor} * i.state_bytes + {allowance}
      AND i.basis_digest = {digest_of_basis}))
    -- The versions to keep are counted in the snapshot, which may lack those of the locked row.
    AND (i.keep_last IS NULL
      OR l.last_sequence = (SELECT m.last_sequence FROM {lines} m WHERE m.line = i.line))
    AND (SELECT c.sequence FROM {checkpoints} c
      WHERE c.line = i.line AND c.checkpoint_id = i.checkpoint_id) IS NULL),
appended AS MATERIALIZED (
  SELECT * FROM looked w
  WHERE w.thread IS NOT NULL AND (w.keep_last IS NULL OR w.floor - (SELECT c.sequence
    FROM {checkpoints} c WHERE c.line = w.line ORDER BY c.sequence LIMIT 1)
    <= greatest(w.keep_last, {hidden}))),
moved AS (
  UPDATE {lines} l SET head = w.sequence, last_sequence = w.sequence, floor = w.floor,
    open_chain = CASE WHEN w.basis IS NULL THEN w.sequence ELSE w.open_chain END,
    open_bytes = CASE WHEN w.basis IS NULL THEN 0 ELSE w.open_bytes END
      + length(w.payload) + {overhead},
    writer = w.writer, run = w.run, updated_at = statement_timestamp()
  FROM appended w WHERE l.line = w.line),
"""
_ACTIVE_APPENDS: Final = """
    SELECT -w.thread AS thread, w.ttl, w.slack FROM appended w WHERE w.thread < 0
    UNION ALL"""
_WON_APPENDS: Final = """
  SELECT w.line, w.sequence, CASE WHEN w.basis IS NULL THEN w.sequence ELSE w.open_chain END
    AS chain, w.head AS parent, {shown} FROM appended w
  UNION ALL"""

# A save alone in its statement; the time of its thread's activity is up to date, or is set.
_APPEND: Final = """
WITH moved AS (
  UPDATE {lines} l SET head = l.last_sequence + 1, last_sequence = l.last_sequence + 1,
    open_chain = CASE WHEN {is_frames} THEN l.open_chain ELSE l.last_sequence + 1 END,
    open_bytes = CASE WHEN {is_frames} THEN l.open_bytes ELSE 0 END
      + length({payload}) + {overhead},
    writer = {writer}, run = {run}, updated_at = statement_timestamp(), floor = {floor}
  WHERE l.line = (SELECT m.line FROM {lines} m WHERE m.line = {line}
    FOR NO KEY UPDATE SKIP LOCKED)
    AND l.head = {known} AND (l.tenant = {tenant}) IS TRUE
    AND (l.thread_id = {thread_id}) IS TRUE AND (l.namespace = {namespace}) IS TRUE
    AND ({is_held} OR l.writer = {writer} OR ({writer} IS NULL AND l.run = {run}))
    AND (NOT {is_frames} OR (l.open_chain IS NOT NULL
      AND l.open_bytes + length({payload}) + {overhead} <= {factor} * {state_bytes} + {allowance}))
    AND {digest_of_known} = {known_digest}
    AND (SELECT c.sequence FROM {checkpoints} c  -- LIMIT: it prices partitions that are left out.
      WHERE c.line = {line} AND c.checkpoint_id = {checkpoint_id} LIMIT 1) IS NULL
    AND (SELECT {is_active} AND (t.expires_at IS NULL OR t.expires_at > statement_timestamp())
      FROM {threads} t WHERE t.tenant = {tenant} AND t.thread_id = {thread_id})
    AND (SELECT count(*) FROM {settings} s WHERE (s.name = 'store_id' AND s.value = {store})
      OR s.name = 'full_text_index') = {setting_rows}
    AND {is_turn} AND {has_few_hidden}
  RETURNING l.last_sequence, l.open_chain),
kept AS (
  INSERT INTO {checkpoints} (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata,
    labels, created_at, text, payload)
  SELECT {line}, m.last_sequence, m.open_chain, {known}, {checkpoint_id}, {digest}, 0,
    {metadata}::jsonb, {labels}::jsonb, statement_timestamp(), {added}, {payload} FROM moved m
  RETURNING line, sequence){indexed}{audited}{touched}
SELECT line, sequence FROM kept WHERE {mark}
"""
_TOUCHED: Final = """,
touched AS (
  UPDATE {threads} t SET active_at = {minute},
    expires_at = CASE WHEN {ttl} IS NOT NULL AND {is_late} THEN {expiry} ELSE t.expires_at END
  FROM moved
  WHERE t.tenant = {tenant} AND t.thread_id = {thread_id})"""
_FLOOR: Final = """CASE WHEN {keep_last} = 1 THEN l.last_sequence + 1
      ELSE greatest(l.floor, (SELECT c.sequence FROM {checkpoints} c WHERE c.line = {line}
        ORDER BY c.sequence DESC OFFSET {keep_last} - 2 LIMIT 1)) END"""
_HAS_FEW_HIDDEN: Final = """{floor} - (SELECT c.sequence FROM {checkpoints} c
      WHERE c.line = {line} ORDER BY c.sequence LIMIT 1) <= greatest({keep_last}, {hidden})"""
_AUDITED: Final = """,
audited AS (
  INSERT INTO {audit} (transaction_id, tenant, recorded_at, who, method, thread_id, detail, result)
  SELECT pg_current_xact_id()::text::bigint, {tenant}, statement_timestamp(), {who}, {method},
    {thread_id}, {detail}, 'done'
  FROM {source})"""
_TURN: Final = """(SELECT u.turn FROM {turns} u
    WHERE {which} AND u.expires_at > statement_timestamp() FOR SHARE) IS NOT DISTINCT FROM {turn}"""
_INDEXED: Final = """,
found AS (
  INSERT INTO {search} (line, sequence, part, words)
  SELECT w.line, w.sequence, 0, array_to_tsvector(string_to_array({words}, ' '))
  FROM {source} w WHERE {words} <> '')"""
_SHOWN: Final = (
    "w.thread_id, w.namespace, w.checkpoint_id, w.digest, w.metadata, w.labels, w.added, w.words, "
    "w.payload"
)
_USER_TYPES: Final = {"string": "", "int": "::integer", "bigint": "::bigint"}
_MINUTE: Final = "date_trunc('minute', statement_timestamp())"
_VERSION: Final = """c.sequence, c.checkpoint_id, c.digest, c.metadata::text AS metadata,
  c.labels::text AS labels, c.created_at, {parent_id} AS parent_id"""

_LINE: Final = """WITH l AS MATERIALIZED (
  SELECT l.line, l.head, l.floor FROM {lines} l
  WHERE l.tenant = $1 AND l.thread_id = $2 AND l.namespace = $3 AND l.head IS NOT NULL{is_line}
    AND (SELECT t.expires_at IS NULL OR t.expires_at > statement_timestamp() FROM {threads} t
      WHERE t.tenant = $1 AND t.thread_id = $2))
"""
_FIND_LINE: Final = """
SELECT l.line, l.head AS sequence FROM {lines} l
WHERE l.tenant = $1 AND l.thread_id = $2 AND l.namespace = $3 AND l.head IS NOT NULL
"""
# IS TRUE: as two conditions of the index they need a sort of the whole line.
_IS_VISIBLE: Final = "(c.sequence >= l.floor OR c.sequence = l.head) IS TRUE"

_ONE: Final = """
SELECT l.line, l.head, {version}, {digest_of_head} AS head_digest{payload}
FROM l LEFT JOIN {which}
"""
# In an order that the index on the ids does not give: without statistics that index costs the
# planner as much as the one on the sequences, and reads the whole line.
_FROM: Final = """(SELECT {columns} FROM {checkpoints} v
    WHERE v.line = {line} AND v.sequence >= {sequence} ORDER BY v.sequence LIMIT 1)"""
_HEAD: Final = "{head} c ON c.sequence = l.head"
_NAMED: Final = "{checkpoints} c ON c.line = {line} AND c.checkpoint_id = $4 AND {is_visible}"
_PAYLOAD: Final = """,
  (SELECT string_agg(p.payload, ''::bytea ORDER BY p.sequence) FROM {checkpoints} p
    WHERE p.line = {line} AND p.chain = c.chain
      AND p.sequence BETWEEN greatest({after_known}s.joined_to + 1, c.chain) AND c.sequence)
    AS payload, s.segments"""

# Records with payloads of their own are behind all segments of their chain.
_SEGMENTS: Final = """
LEFT JOIN LATERAL (
  SELECT max(s.last) AS joined_to,
    pg_catalog.array_agg(ROW(s.chain, s.first, s.last, s.payload)) AS segments
  FROM {segments} s WHERE s.line = {line} AND s.chain = c.chain AND s.first <= c.sequence
    AND {is_wanted}) s ON true"""

_WRITES: Final = """,
  (SELECT pg_catalog.array_agg(ROW(w.task_id, w.idx, w.channel, w.type, w.task_path, w.basis,
      w.payload))
    FROM {writes} w WHERE w.line = {line} AND w.checkpoint_id = c.checkpoint_id) AS writes"""

# A thread without a version may exist nevertheless: a transaction decides.
_HAS_VERSION: Final = """((SELECT h.line FROM {lines} h WHERE h.tenant = $1
    AND h.thread_id = {it}.thread_id AND h.head IS NOT NULL LIMIT 1) IS NOT NULL)"""
_MAY_COME_FIRST: Final = "(b.must_exist IS NULL OR (b.must_exist = 'thread' AND {has_version}))"

# Behind a version that the caller has, if it is in the chain.
_PAYLOAD_AFTER: Final = f"{_PAYLOAD}, k.sequence AS basis"
_KNOWN: Final = """
LEFT JOIN {known} k ON k.line = c.line AND k.chain = c.chain AND k.sequence <= c.sequence
  AND k.sequence = $5::bigint AND k.digest = $6::bytea"""

_COLD: Final = {"is_wanted": "true", "after_known": ""}
_KNOWING: Final = {
    "is_wanted": "s.last > coalesce(k.sequence, 0)",
    "after_known": "k.sequence + 1, ",
}

_HISTORY: Final = """,
b AS MATERIALIZED (SELECT (SELECT c.sequence FROM {checkpoints} c
    WHERE c.line = {line} AND c.checkpoint_id = $4 LIMIT 1) AS before FROM l)
SELECT l.line, b.before, v.* FROM l CROSS JOIN b LEFT JOIN LATERAL (
  SELECT {version} FROM {checkpoints} c
  WHERE c.line = {line} AND {is_visible}
    AND c.sequence < CASE WHEN $4::text IS NULL THEN {most} ELSE b.before END
  ORDER BY c.sequence DESC LIMIT $5) v ON true
ORDER BY v.sequence DESC
"""


class FastStatements:
    """The fast statements of one set of tables.

    Args:
        tables: The tables.
        dialect: PostgreSQL's.
        has_partitions: The tables are divided. The planner leaves out all partitions but that of a
            line that is a parameter, so ``find_line`` is asked first, and reads have one more.
        has_audit: Saves are recorded; their parameters end with ``RecordedSave``.
        has_row_security: Each statement names its tenant to the server.
    """

    def __init__(
        self,
        tables: Tables,
        dialect: Dialect,
        *,
        has_partitions: bool = False,
        has_audit: bool = False,
        has_row_security: bool = False,
    ) -> None:
        self._is_guarded = has_row_security
        table = dialect.identifier_preparer.format_table
        names = {
            name: table(getattr(tables, name))
            for name in (
                *("threads", "lines", "checkpoints", "segments", "writes", "settings", "turns"),
                "audit",
            )
        }
        search = sa.table(f"{tables.prefix}search", schema=tables.schema)
        self._names = {**names, "search": table(search)}
        self._recorded = RecordedSave._fields if has_audit else ()
        kinds = product((False, True), get_args(UserIdType), (False, True))
        self.group = {kind: self._make_saves(*kind) for kind in kinds}
        self.append = {it: self._make_appends(has_index=it) for it in (False, True)}
        """The statements of a single save: is there an index, does it note the thread's activity,
        is it pruned."""
        self.find_line = self._fill(_FIND_LINE) if has_partitions else None
        last = [f"${at}::bigint" if has_partitions else "l.line" for at in (4, 5, 6)]
        of_head, named, listed = last
        self.head = self._make_loads(_HEAD + _SEGMENTS, _PAYLOAD, line=of_head, **_COLD)
        self.head_after = self._make_loads(
            _HEAD + _KNOWN + _SEGMENTS, _PAYLOAD_AFTER, line="$4::bigint", **_KNOWING
        )
        self.named = self._make_loads(_NAMED + _SEGMENTS, _PAYLOAD, line=named, **_COLD)
        self.head_version = self._make_load(_HEAD, "", line=of_head)
        self.named_version = self._make_load(_NAMED, "", line=named)
        self.history = self._fill(_LINE + _HISTORY, line=listed)
        wanted = self._from("w.line", "w.sequence", "v.line, v.sequence, v.chain")
        self.contents = self._fill(contents.CONTENTS, wanted=wanted)
        self.put_writes = self._make_put(**contents.make_batches())
        self.put_lone = {
            (length, version): self._make_put(**contents.make_lone(length, version))
            for length in range(1, contents.LONE_WRITES + 1)
            for version in contents.VERSIONS
        }
        """The statements of one batch, by its number of writes and ``contents.VERSIONS``."""

    @staticmethod
    def make_versions(
        rows: Sequence[Mapping[str, Any]], store: str, thread_id: str, namespace: str
    ) -> list[Version]:
        """Return the versions of rows; the row of an empty line gives none."""
        whole = (it for it in rows if it["sequence"] is not None)
        return Table(_make_version(it, store, thread_id, namespace) for it in whole)

    @staticmethod
    def make_stored(
        row: Mapping[str, Any], store: str, thread_id: str, namespace: str, mark: Mark | None = None
    ) -> Stored | None:
        """Return the version of a row, with its payload."""
        if row["sequence"] is None:
            return None
        basis = None if mark is None or row["basis"] is None else mark
        version = _make_version(row, store, thread_id, namespace)
        with name_version_in_errors(version):
            payloads = contents.parse_payloads(row, basis.sequence if basis else 0)
        writes = None
        if "writes" in row:
            found = [contents.write_of(version.checkpoint_id, it) for it in row["writes"] or ()]
            writes = sorted(found, key=make_write_sort_key)
        return Stored(
            version=version,
            head=Mark(store, row["line"], row["head"], row["head_digest"]),
            payloads=payloads,
            basis=basis,
            writes=writes,
        )

    def _fill(self, text: str, *, line: str = "l.line", **more: str) -> str:
        known = {
            **self._names,
            "minute": _MINUTE,
            "line": line,
            "is_line": "" if line == "l.line" else f" AND l.line = {line}",
            "parent_id": self._render_lookup("checkpoint_id", line, "c.parent"),
            "digest_of_head": self._render_lookup("digest", line, "l.head"),
            "turn_of_input": render_turn_condition(self._names["turns"], "i.thread_id", "i.turn"),
            "digest_of_expected": self._render_lookup("digest", "i.line", "i.expected"),
            "digest_of_basis": self._render_lookup("digest", "i.line", "i.basis"),
            "is_visible": _IS_VISIBLE,
            "most": str(2**63 - 1),
            "overhead": str(RECORD_OVERHEAD),
            "factor": str(CHAIN_FACTOR),
            "allowance": str(CHAIN_ALLOWANCE),
            "hidden": str(HIDDEN_BATCH),
            "one_shard": ONE_SHARD,
            "mark": MARK,
        }
        filled = text.format(version=_VERSION.format(**known), **{**known, **more})
        return guard(filled) if self._is_guarded else filled

    def _from(self, line: str, sequence: str, columns: str = "v.*") -> str:
        """Return a look-up of the first version from a sequence on."""
        table = self._names["checkpoints"]
        return _FROM.format(columns=columns, checkpoints=table, line=line, sequence=sequence)

    def _render_lookup(self, column: str, line: str, sequence: str) -> str:
        """Return a look-up of a column of one version; NULL if there is no such version."""
        return self._from(line, sequence, f"CASE v.sequence WHEN {sequence} THEN v.{column} END")

    def _has_version(self, source: str) -> str:
        """Return the condition that a row's thread has a version in any namespace."""
        return _HAS_VERSION.format(lines=self._names["lines"], it=source)

    def _make_loads(self, which: str, payload: str, **parts: str) -> tuple[str, str]:
        """Return the statement of a load without, and with, pending writes."""
        one, other = (self._make_load(which, it, **parts) for it in (payload, payload + _WRITES))
        return one, other

    def _make_load(self, which: str, payload: str, *, line: str, **more: str) -> str:
        head = f"LATERAL {self._from(line, 'l.head')}"
        known = f"LATERAL {self._from('$4::bigint', '$5::bigint')}"
        parts = {**self._names, **more, "is_visible": _IS_VISIBLE, "head": head}
        parts |= {"known": known, "line": line}
        which, payload = which.format(**parts), payload.format(**parts)
        return self._fill(_LINE + _ONE, line=line, which=which, payload=payload)

    def _make_put(self, **parts: str) -> str:
        turn = render_turn_condition(self._names["turns"], "b.thread_id", "b.turn")
        parts["turn_of_batch"] = turn
        first = _MAY_COME_FIRST.format(has_version=self._has_version("b"))
        found = parts["has_version"].format(may_come_first=first, **self._names)
        parts |= {"may_come_first": first, "has_version": found}
        return self._fill(
            contents.PUT_WRITES, expiry_of_writes=_render_expiry("l.ttl", "l.slack"), **parts
        )

    def _render_audited(self, source: str, **parts: str) -> str:
        """Return the part of a save's statement that records it; empty if it is not recorded."""
        table = self._names["audit"]
        return render_audited(table, "'commit'", source, **parts) if self._recorded else ""

    def _render_indexed(self, source: str, words: str) -> str:
        """Return the part of a save's statement that adds its words to the index."""
        return _INDEXED.format(search=self._names["search"], source=source, words=words)

    def _make_appends(self, *, has_index: bool) -> dict[tuple[bool, bool], str]:
        names = self._names
        fields = render_parameters((*LoneSave._fields, *OF_ROW[has_index], *self._recorded))
        known = self._render_lookup("digest", fields["line"], fields["known"])
        is_turn = render_turn_condition(names["turns"], fields["thread_id"], fields["turn"])
        audited = self._render_audited("kept", **fields)
        parts = {"added": "NULL", "indexed": "", "setting_rows": str(1 + has_index), **fields}
        parts |= {"digest_of_known": known, "is_turn": is_turn, "audited": audited}
        if has_index:
            parts["indexed"] = self._render_indexed("kept", fields["words"])
        hidden = {**names, **fields, "hidden": str(HIDDEN_BATCH), "minute": _MINUTE}
        ttl = fields["ttl"], fields["slack"]
        hidden |= {"is_late": _is_late(*ttl), "expiry": _render_expiry(*ttl)}
        is_active = f"t.active_at = {_MINUTE} AND ({ttl[0]} IS NULL OR NOT {hidden['is_late']})"
        hidden["floor"] = _FLOOR.format(**hidden)
        kept = {
            False: {"floor": "l.floor", "has_few_hidden": f"{fields['keep_last']} IS NULL"},
            True: {"floor": hidden["floor"], "has_few_hidden": _HAS_FEW_HIDDEN.format(**hidden)},
        }
        activity = {
            False: {"is_active": is_active, "touched": ""},
            True: {"is_active": "true", "touched": _TOUCHED.format(**hidden)},
        }
        return {
            (touches, keeps): self._fill(_APPEND, **parts, **kept[keeps], **activity[touches])
            for touches in (False, True)
            for keeps in (False, True)
        }

    def _make_saves(self, has_index: bool, users: UserIdType, are_first: bool) -> str:
        names = *SaveRow._fields, *self._recorded
        arrays = render_parameters(names, first=len(SaveGroup._fields) + 1, suffix="[]")
        columns = {it: f"w.{it}" for it in ("thread_id", *self._recorded)}
        shown = ", ".join((_SHOWN, *list(columns.values())[1:]))
        late, late_touched = _is_late("i.ttl", "i.slack"), _is_late("w.ttl", "w.slack")
        parts = {"is_late": late, "shown": shown, "given": arrays["line"]}
        return self._fill(
            _GROUP,
            arrays=", ".join(arrays.values()),
            fields=", ".join(arrays),
            does_exist=f"t.user_id IS NOT NULL OR {self._has_version('t')}",
            is_late_touched=late_touched,
            expiry=_render_expiry("i.ttl", "i.slack"),
            expiry_touched=_render_expiry("w.ttl", "w.slack"),
            audited=self._render_audited("won w", tenant="$1", **columns),
            user_type=_USER_TYPES[users],
            indexed=self._render_indexed("won", "w.words") if has_index else "",
            appends="" if are_first else self._fill(_APPENDS, **parts),
            active_appends="" if are_first else _ACTIVE_APPENDS,
            won_appends="" if are_first else _WON_APPENDS.format(shown=shown),
            **parts,
        )


def render_audited(table: str, method: str, source: str, **parts: str) -> str:
    """Return the part of a statement that records what is done, as ``sql.audit`` does.

    Args:
        table: The name of the table of entries.
        method: SQL of the name of the call.
        source: SQL behind FROM: a row for each call that is done.
        parts: SQL of ``tenant``, ``who``, ``thread_id`` and ``detail``, and others.
    """
    return _AUDITED.format(audit=table, method=method, source=source, **parts)


def render_turn_condition(turns: str, thread_id: str, turn: str, tenant: str = "$1") -> str:
    """Return the condition that a write belongs to the turn that is held, or none is.

    The lock lets the next turn begin after the write. It is taken on a row that is committed by
    then, so the condition looks at what another turn has made of it.
    """
    which = f"u.tenant = {tenant} AND u.thread_id = {thread_id}"
    return _TURN.format(turns=turns, which=which, turn=turn)


def _is_late(ttl: str, slack: str) -> str:
    """Return the condition for rewriting the expiry: see ``renewing.compute_ttl_slack``."""
    least = f"statement_timestamp() + make_interval(secs => {ttl})"
    late = _render_expiry(ttl, slack)
    return f"(t.expires_at IS NULL OR t.expires_at NOT BETWEEN {least} AND {late})"


def _render_expiry(ttl: str, slack: str) -> str:
    return f"(statement_timestamp() + make_interval(secs => {ttl} + {slack}))"


def _make_version(row: Mapping[str, Any], store: str, thread_id: str, namespace: str) -> Version:
    parent_id = row["parent_id"]
    return Version(
        mark=Mark(store, row["line"], row["sequence"], row["digest"]),
        thread_id=thread_id,
        namespace=namespace,
        checkpoint_id=row["checkpoint_id"],
        parent_id=parent_id,
        metadata=load_json(row["metadata"]),
        labels=load_json(row["labels"]),
        created_at=row["created_at"],
    )
