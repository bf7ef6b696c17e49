-- tenant: str
-- thread_id: str
-- namespace: str
-- namespace_1: str
-- param_1: int as int
-- param_2: int as int
-- limit: int as int
SELECT locus_threads.thread_id, locus_logs.namespace AS log_namespace, locus_logs.revision, locus_logs.message_count, locus_logs.changed_at
FROM locus_threads JOIN locus_logs ON locus_logs.thread = locus_threads.thread
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_logs.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) AND locus_logs.namespace = :namespace ORDER BY locus_threads.thread_id, CASE WHEN (locus_logs.namespace = :namespace_1) THEN :param_1 ELSE :param_2 END, locus_logs.namespace
 FETCH FIRST :limit ROWS ONLY
