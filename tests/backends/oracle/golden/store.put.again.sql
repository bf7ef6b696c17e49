7 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant_1: str
--   namespace_1: str
--   key_1: str
SELECT locus_store.item, locus_store.namespace, locus_store.key, locus_store.version, locus_store.created_at, CASE WHEN (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_live
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace = :namespace_1 AND locus_store.key = :key_1 FOR UPDATE

-- execute
--   name_1: str
SELECT locus_settings.value
FROM locus_settings
WHERE locus_settings.name = :name_1

-- execute
--   item_1_1: int as int
DELETE FROM locus_embeddings WHERE locus_embeddings.item IN (:item_1_1)

-- execute
SELECT FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1 FROM DUAL

-- execute
--   metadata: NULL as DB_TYPE_JSON
--   version: int as int
--   created_at: datetime as DB_TYPE_TIMESTAMP
--   updated_at: datetime as DB_TYPE_TIMESTAMP
--   expires_at: NULL as DB_TYPE_TIMESTAMP
--   value: NULL as DB_TYPE_JSON
--   ttl_seconds: NULL
--   of_item: int as int
UPDATE locus_store SET metadata=:metadata, version=:version, created_at=FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), updated_at=FROM_TZ(CAST(:updated_at AS TIMESTAMP), '+00:00'), expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00'), value=:value, ttl_seconds=:ttl_seconds WHERE locus_store.item = :of_item

-- commit
