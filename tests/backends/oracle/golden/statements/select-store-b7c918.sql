-- tenant_1: str
SELECT locus_store.item
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
 FETCH FIRST 10 ROWS ONLY
