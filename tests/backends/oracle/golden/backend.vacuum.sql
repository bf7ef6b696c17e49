2 calls of the driver

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
