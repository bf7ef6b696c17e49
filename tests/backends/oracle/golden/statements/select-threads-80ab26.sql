-- tenant: str
-- thread_0: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id IN (:thread_0) AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT max(locus_logs.changed_at) AS max_2
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL
