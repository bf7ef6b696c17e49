-- tenant_1: str
SELECT locus_quotas.limits, locus_quotas.usage, locus_quotas.revision, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS at
FROM locus_quotas
WHERE locus_quotas.tenant = :tenant_1
