7 calls of the driver

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
