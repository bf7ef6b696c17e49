1 round trips

-- execute, commits
--   tenant_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > SYSTIMESTAMP AT TIME ZONE 'UTC') ORDER BY locus_threads.thread_id
 FETCH FIRST 100 ROWS ONLY
