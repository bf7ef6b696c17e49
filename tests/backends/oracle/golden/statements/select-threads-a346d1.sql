-- param_1: int as int
-- param_2: int as int
SELECT locus_threads.tenant, sum(CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END) AS sum_1
FROM locus_threads GROUP BY locus_threads.tenant
