-- tenant: str
-- first: str
-- beyond: str
SELECT DISTINCT locus_store.namespace
FROM locus_store
WHERE locus_store.tenant = :tenant AND locus_store.namespace >= :first AND locus_store.namespace < :beyond AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
