-- item_1_1: int as int
UPDATE locus_store SET expires_at=(FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(locus_store.ttl_seconds AS DOUBLE PRECISION), 'SECOND')) WHERE locus_store.item IN (:item_1_1)
