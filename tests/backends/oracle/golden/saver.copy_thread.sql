12 calls of the driver

-- execute
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   name_1: str
SELECT locus_settings.name
FROM locus_settings
WHERE locus_settings.name = :name_1 FOR UPDATE

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
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

-- execute
--   param_1: str
--   tenant_1: str
--   thread_id_1_1: str
INSERT INTO locus_threads (thread_id, active_at, tenant, user_id, name, metadata, created_at, expires_at) SELECT :param_1 AS anon_1, CASE WHEN ((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) IS NOT NULL) THEN FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') ELSE locus_threads.active_at END AS anon_2, locus_threads.tenant, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- execute
--   tenant_1: str
--   tenant_2: str
--   thread_id_1_1: str
--   thread_id_2_1: str
INSERT INTO locus_messages (thread, sequence, message_id, role, metadata, created_at, text, payload) SELECT (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)) AS anon_1, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload
FROM locus_messages
WHERE locus_messages.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_2 AND locus_threads.thread_id IN (:thread_id_2_1))

-- execute
--   param_1: str
--   tenant_1: str
--   thread_id_1: str
INSERT INTO locus_lines (thread_id, updated_at, tenant, namespace, head, open_chain, open_bytes, floor, last_sequence) SELECT :param_1 AS anon_1, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS moment_1, locus_lines.tenant, locus_lines.namespace, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1: str
--   tenant_2: str
--   thread_id_2: str
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata, labels, created_at, text, payload) SELECT new_lines.line, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.codec, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.text, locus_checkpoints.payload
FROM locus_lines old_lines JOIN locus_lines new_lines ON new_lines.namespace = old_lines.namespace JOIN locus_checkpoints ON locus_checkpoints.line = old_lines.line
WHERE old_lines.tenant = :tenant_1 AND old_lines.thread_id = :thread_id_1 AND new_lines.tenant = :tenant_2 AND new_lines.thread_id = :thread_id_2

-- execute
--   tenant_1: str
--   thread_id_1: str
--   tenant_2: str
--   thread_id_2: str
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, type, task_path, basis, created_at, payload) SELECT new_lines.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_lines old_lines JOIN locus_lines new_lines ON new_lines.namespace = old_lines.namespace JOIN locus_writes ON locus_writes.line = old_lines.line
WHERE old_lines.tenant = :tenant_1 AND old_lines.thread_id = :thread_id_1 AND new_lines.tenant = :tenant_2 AND new_lines.thread_id = :thread_id_2

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- commit
