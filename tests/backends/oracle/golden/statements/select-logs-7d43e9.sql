-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_logs.revision, locus_logs.message_count, locus_logs.changed_at
FROM locus_logs
WHERE locus_logs.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) AND locus_logs.namespace = :namespace
