-- tenant_1: str
-- namespace_1: str
-- namespace_2: str
SELECT DISTINCT locus_store.namespace
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace >= :namespace_1 AND locus_store.namespace < :namespace_2 AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
