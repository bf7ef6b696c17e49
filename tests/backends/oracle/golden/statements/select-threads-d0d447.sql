-- tenant_1: str
SELECT locus_threads.thread_id
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AND locus_threads.thread_id IN (NULL) AND (1 != 1)
 FETCH FIRST 200 ROWS ONLY
