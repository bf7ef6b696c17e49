17 calls of the driver

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
