-- tenant: str
-- thread_0: str
SELECT locus_threads.name, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id IN (:thread_0)
