-- tenant: str
-- thread_0: str
DELETE FROM locus_messages WHERE locus_messages.thread IN (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id IN (:thread_0))
