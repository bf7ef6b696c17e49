-- tenant_1: str
SELECT count(*) AS count_1
FROM (SELECT locus_threads.thread AS thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) anon_1
