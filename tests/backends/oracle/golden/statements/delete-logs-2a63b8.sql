-- tenant_1: str
-- thread_id_1_1: str
DELETE FROM locus_logs WHERE locus_logs.thread IN (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1))
