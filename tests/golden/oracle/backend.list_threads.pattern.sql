2 calls of the driver

-- execute, commits
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.active_at, locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute, commits
--   tenant_1: str
--   namespace_1: str
--   active_at_1: datetime as DB_TYPE_TIMESTAMP
--   active_at_2: datetime as DB_TYPE_TIMESTAMP
--   thread_1: int as int
--   param_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (SELECT locus_lines.line
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL) IS NOT NULL AND locus_threads.active_at <= FROM_TZ(CAST(:active_at_1 AS TIMESTAMP), '+00:00') AND (locus_threads.active_at < FROM_TZ(CAST(:active_at_2 AS TIMESTAMP), '+00:00') OR locus_threads.thread < :thread_1) AND locus_threads.thread_id LIKE :param_1 ESCAPE '\' ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST 5 ROWS ONLY
