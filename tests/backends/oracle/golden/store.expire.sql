4 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
SELECT locus_store.item
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
 FETCH FIRST 1000 ROWS ONLY

-- execute
--   name_1: str
SELECT locus_settings.value
FROM locus_settings
WHERE locus_settings.name = :name_1

-- commit
