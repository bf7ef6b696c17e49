1 calls of the driver

-- execute, commits
--   tenant_1: str
--   namespace_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (SELECT locus_lines.line
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL) IS NOT NULL ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST 100 ROWS ONLY
