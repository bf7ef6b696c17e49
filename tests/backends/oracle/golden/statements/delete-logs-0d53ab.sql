-- tenant: str
-- thread_0: str
DELETE FROM locus_logs WHERE locus_logs.thread IN (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id IN (:thread_0))
