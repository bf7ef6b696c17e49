-- tenant_1: str
-- namespace_1: str
SELECT locus_store.item, locus_store.namespace, locus_store.key, locus_store.metadata, locus_store.version, locus_store.created_at, locus_store.updated_at, locus_store.expires_at, locus_store.value AS value, locus_store.ttl_seconds
FROM locus_store
WHERE (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_store.tenant = :tenant_1 AND locus_store.namespace = :namespace_1 ORDER BY locus_store.key
 FETCH FIRST 100 ROWS ONLY
