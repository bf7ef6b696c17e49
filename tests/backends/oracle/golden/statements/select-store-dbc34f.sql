-- param_1: int as int
SELECT locus_store.tenant, count(CASE WHEN (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 END) AS count_1
FROM locus_store GROUP BY locus_store.tenant
