9 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread, locus_threads.thread_id, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.active_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line, locus_lines.tenant, locus_lines.thread_id, locus_lines.namespace, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, locus_lines.updated_at
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 ORDER BY locus_lines.line

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   thread_1: int as int
SELECT locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload
FROM locus_messages
WHERE locus_messages.thread = :thread_1 ORDER BY locus_messages.sequence

-- commit
