-- tenant_1: str
-- thread_id_1: str
SELECT locus_lines.namespace
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_lines.thread_id = :thread_id_1 AND locus_lines.head IS NOT NULL
