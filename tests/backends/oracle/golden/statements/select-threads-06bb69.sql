-- tenant_1: str
-- thread_id_1_1: str
-- thread_id_1_2: str
SELECT locus_threads.thread_id, sum(locus_logs.message_count) AS sum_1
FROM locus_threads JOIN locus_logs ON locus_logs.thread = locus_threads.thread
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1, :thread_id_1_2) GROUP BY locus_threads.thread_id
