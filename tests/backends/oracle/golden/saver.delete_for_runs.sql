25 calls of the driver

-- execute, commits
--   tenant_1: str
--   param_1: str
SELECT locus_lines.thread_id, locus_lines.namespace, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata
FROM locus_checkpoints JOIN locus_lines ON locus_checkpoints.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND JSON_EXISTS(locus_checkpoints.metadata, '$."run_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v")

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

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
--   line: int as int
--   checkpoint_id: str
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.checkpoint_id = :checkpoint_id

-- execute
--   line_1: int as int
--   parent_1_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.parent IN (:parent_1_1)

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
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.parent IN (:parent_1_1)

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
DELETE FROM locus_writes WHERE locus_writes.line = :line_1 AND locus_writes.checkpoint_id IN (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_2 AND locus_checkpoints.sequence IN (:sequence_1_1))

-- execute
--   line_1: int as int
--   sequence_1_1: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence DESC
 OFFSET 0 ROWS
 FETCH FIRST 1 ROWS ONLY

-- execute
--   line_1: int as int
SELECT locus_lines.thread_id, locus_lines.updated_at
FROM locus_lines
WHERE locus_lines.line = :line_1

-- execute
--   line_1: int as int
DELETE FROM locus_lines WHERE locus_lines.line = :line_1

-- execute
--   line_1: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line_1

-- execute
--   line_1: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1) ORDER BY locus_lines.thread_id, locus_lines.namespace FOR UPDATE

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) ORDER BY locus_threads.thread_id FOR UPDATE

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1) ORDER BY locus_lines.thread_id, locus_lines.namespace FOR UPDATE

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1)

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL

-- execute
--   tenant_1: str
--   thread_id_1_1: str
DELETE FROM locus_messages WHERE locus_messages.thread IN (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1))

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1)

-- execute
--   tenant_1: str
--   thread_id_1_1: str
DELETE FROM locus_threads WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- commit
