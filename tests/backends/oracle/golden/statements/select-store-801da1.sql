-- tenant: str
-- offset: int
-- limit: int
SELECT locus_store.item, locus_store.namespace, locus_store.key, locus_store.metadata, locus_store.version, locus_store.created_at, locus_store.updated_at, locus_store.expires_at, locus_store.value AS value, locus_store.ttl_seconds
FROM locus_store
WHERE locus_store.tenant = :tenant AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) ORDER BY locus_store.updated_at DESC, locus_store.item DESC
 OFFSET :offset ROWS
 FETCH FIRST :limit ROWS ONLY
