-- tenant: str
-- thread_0: str
SELECT locus_logs.thread, locus_logs.namespace, locus_logs.revision, locus_logs.changed_at
FROM locus_logs JOIN locus_threads ON locus_threads.thread = locus_logs.thread
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id IN (:thread_0) AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
