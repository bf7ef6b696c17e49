-- param_1: float
-- param_2: int as int
-- param_3: int as int
-- thread_1: int as int
SELECT CASE WHEN (max(locus_logs.changed_at) < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))) THEN :param_2 WHEN (max(locus_logs.changed_at) IS NOT NULL) THEN :param_3 END AS anon_1
FROM locus_logs
WHERE locus_logs.thread = :thread_1
