44 calls of the driver

-- execute, commits
--   tenant_1: str
--   param_1: float
SELECT DISTINCT locus_lines.thread_id
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_lines.tenant = :tenant_1 AND locus_checkpoints.created_at < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))

-- execute, commits
--   tenant_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) IS NULL

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 FOR UPDATE SKIP LOCKED

-- execute
ALTER SESSION SET TIME_ZONE = '+00:00' NLS_COMP = BINARY NLS_SORT = BINARY NLS_NUMERIC_CHARACTERS = '.,'

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 FOR UPDATE SKIP LOCKED

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) FOR UPDATE SKIP LOCKED

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.active_at < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 ELSE :param_3 END AS anon_1
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_checkpoints.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_checkpoints.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_writes.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_writes.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   thread_1: int as int
SELECT CASE WHEN (max(locus_messages.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_messages.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_messages
WHERE locus_messages.thread = :thread_1

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
--   tenant_1: str
--   thread_id_1_1: str
DELETE FROM locus_threads WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- commit

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) FOR UPDATE SKIP LOCKED

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.active_at < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 ELSE :param_3 END AS anon_1
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_checkpoints.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_checkpoints.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_writes.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_writes.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_checkpoints.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_checkpoints.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   line_1: int as int
SELECT CASE WHEN (max(locus_writes.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_writes.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   param_1: float
--   param_2: int as int
--   param_3: int as int
--   thread_1: int as int
SELECT CASE WHEN (max(locus_messages.created_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_messages.created_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_messages
WHERE locus_messages.thread = :thread_1

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
