-- param_1: float
-- param_2: int as int
-- param_3: int as int
-- tenant_1: str
-- thread_id_1_1: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.active_at < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 ELSE :param_3 END AS anon_1, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)
