49 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
 FETCH FIRST 200 ROWS ONLY

-- execute
--   tenant_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (NULL) AND (1 != 1) ORDER BY locus_lines.thread_id, locus_lines.namespace FOR UPDATE

-- execute
--   tenant_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (NULL) AND (1 != 1) ORDER BY locus_threads.thread_id FOR UPDATE

-- execute
--   tenant_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (NULL) AND (1 != 1) ORDER BY locus_lines.thread_id, locus_lines.namespace FOR UPDATE

-- execute
--   tenant_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AND locus_threads.thread_id IN (NULL) AND (1 != 1)
 FETCH FIRST 200 ROWS ONLY

-- commit

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   user_id_1: str
--   param_1: str
SELECT locus_threads.thread_id, locus_threads.user_id, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (locus_threads.user_id = :user_id_1 OR JSON_EXISTS(locus_threads.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v"))

-- execute
--   tenant_1: str
--   param_1: str
--   param_2: str
SELECT locus_lines.thread_id, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints JOIN locus_lines ON locus_checkpoints.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (JSON_EXISTS(locus_checkpoints.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_2 AS "v"))

-- commit

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

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

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
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

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
--   line_1: int as int
DELETE FROM locus_lines WHERE locus_lines.line = :line_1

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   line_1: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line_1

-- execute
--   line_1: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1

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
DELETE FROM locus_threads WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- commit

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   user_id_1: str
--   param_1: str
SELECT locus_threads.thread_id, locus_threads.user_id, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (locus_threads.user_id = :user_id_1 OR JSON_EXISTS(locus_threads.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v"))

-- execute
--   tenant_1: str
--   param_1: str
--   param_2: str
SELECT locus_lines.thread_id, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints JOIN locus_lines ON locus_checkpoints.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (JSON_EXISTS(locus_checkpoints.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_2 AS "v"))

-- commit

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   user_id_1: str
--   param_1: str
SELECT locus_threads.thread_id, locus_threads.user_id, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (locus_threads.user_id = :user_id_1 OR JSON_EXISTS(locus_threads.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v"))

-- execute
--   tenant_1: str
--   param_1: str
--   param_2: str
SELECT locus_lines.thread_id, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints JOIN locus_lines ON locus_checkpoints.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (JSON_EXISTS(locus_checkpoints.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_2 AS "v"))

-- commit

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   param_1: str
SELECT locus_store.item, locus_store.metadata
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND JSON_EXISTS(locus_store.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v")

-- execute
--   name_1: str
SELECT locus_settings.value
FROM locus_settings
WHERE locus_settings.name = :name_1

-- commit
