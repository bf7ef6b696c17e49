-- tenant_1: str
-- tenant_2: str
-- thread_id_1_1: str
-- thread_id_2_1: str
INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at) SELECT (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)) AS anon_1, locus_logs.namespace, locus_logs.revision, locus_logs.message_count, locus_logs.last_sequence, locus_logs.changed_at
FROM locus_logs
WHERE locus_logs.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_2 AND locus_threads.thread_id IN (:thread_id_2_1))
