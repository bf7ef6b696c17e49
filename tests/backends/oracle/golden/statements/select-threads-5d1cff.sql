-- tenant_1: str
-- thread_id_1_1: str
SELECT locus_threads.name, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)
