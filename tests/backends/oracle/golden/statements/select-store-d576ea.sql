-- tenant_1: str
-- namespace_1: str
-- key_1: str
SELECT locus_store.item
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace = :namespace_1 AND locus_store.key = :key_1 AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_store.ttl_seconds IS NOT NULL ORDER BY locus_store.namespace, locus_store.key FOR UPDATE
