4 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   namespace_1: str
--   key_1: str
SELECT locus_store.item
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace = :namespace_1 AND locus_store.key = :key_1 AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_store.ttl_seconds IS NOT NULL ORDER BY locus_store.namespace, locus_store.key FOR UPDATE

-- execute
--   item_1_1: int as int
UPDATE locus_store SET expires_at=(FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(locus_store.ttl_seconds AS DOUBLE PRECISION), 'SECOND')) WHERE locus_store.item IN (:item_1_1)

-- commit
