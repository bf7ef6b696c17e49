20 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.namespace
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND locus_lines.head IS NOT NULL FOR UPDATE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, CASE WHEN (locus_threads.active_at = FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_noted
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- execute
--   line_1: int as int
--   sequence_1: int as int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence < :sequence_1 ORDER BY locus_checkpoints.sequence
 FETCH FIRST 3 ROWS ONLY

-- execute
--   line_1: int as int
--   parent_1_1: int as int
--   parent_1_2: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.parent IN (:parent_1_1, :parent_1_2)

-- execute
--   line: int as int
--   sequence: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.sequence = :sequence

-- execute
--   line: int as int
--   sequence: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.sequence = :sequence

-- execute
--   line: int as int
--   chain: int as int
--   upto: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.chain = :chain AND locus_checkpoints.sequence >= :chain AND locus_checkpoints.sequence <= :upto ORDER BY locus_checkpoints.sequence

-- execute
--   line: int as int
--   chain: int as int
--   upto: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.chain = :chain AND locus_checkpoints.sequence >= :chain AND locus_checkpoints.sequence <= :upto ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
--   parent_1_1: int as int
--   parent_1_2: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.parent IN (:parent_1_1, :parent_1_2)

-- execute
--   parent: NULL as int
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET parent=:parent WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   line_1: int as int
--   line_2: int as int
--   sequence_1_1: int as int
--   sequence_1_2: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line_1 AND locus_writes.checkpoint_id IN (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_2 AND locus_checkpoints.sequence IN (:sequence_1_1, :sequence_1_2))

-- execute
--   line_1: int as int
--   sequence_1_1: int as int
--   sequence_1_2: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1, :sequence_1_2)

-- execute
--   new_head: int as int
--   new_open_chain: int as int
--   new_open_bytes: int as int
--   new_floor: int as int
--   new_last_sequence: int as int
--   new_writer: NULL
--   new_run: NULL
--   is_save: int as int
--   param_1: int as int
--   of_line: int as int
UPDATE locus_lines SET head=:new_head, open_chain=:new_open_chain, open_bytes=:new_open_bytes, floor=:new_floor, last_sequence=:new_last_sequence, writer=:new_writer, run=:new_run, updated_at=CASE WHEN (:is_save = :param_1) THEN FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') ELSE locus_lines.updated_at END WHERE locus_lines.line = :of_line

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND locus_lines.head IS NOT NULL FOR UPDATE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, CASE WHEN (locus_threads.active_at = FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_noted
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- execute
--   line_1: int as int
--   sequence_1: int as int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence < :sequence_1 ORDER BY locus_checkpoints.sequence
 FETCH FIRST 1 ROWS ONLY

-- commit
