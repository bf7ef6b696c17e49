5 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
SELECT locus_lines.thread_id, locus_lines.namespace, locus_lines.last_sequence
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.head IS NOT NULL ORDER BY locus_lines.last_sequence DESC, locus_lines.line
 FETCH FIRST 3 ROWS ONLY

-- execute
--   tenant_1: str
SELECT count(*) AS count_1
FROM (SELECT locus_threads.thread AS thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) anon_1

-- execute
--   tenant_1: str
--   floor_1: int as int
SELECT count(*) AS count_1
FROM (SELECT locus_checkpoints.sequence AS sequence
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.floor > :floor_1 AND locus_checkpoints.sequence < locus_lines.floor AND locus_checkpoints.sequence != locus_lines.head) anon_1

-- commit
