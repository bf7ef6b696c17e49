-- tenant: str
-- first: str
-- beyond: str
-- param_1: str
-- param_2: Decimal
-- param_3: str
-- offset: int
-- limit: int
SELECT locus_store.item, locus_store.namespace, locus_store.key, locus_store.metadata, locus_store.version, locus_store.created_at, locus_store.updated_at, locus_store.expires_at, locus_store.value AS value, locus_store.ttl_seconds
FROM locus_store
WHERE locus_store.tenant = :tenant AND locus_store.namespace >= :first AND locus_store.namespace < :beyond AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND JSON_EXISTS(locus_store.value, '$."kind"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") AND (JSON_EXISTS(locus_store.value, '$."n"[*]?(@.numberOnly() == $v)' PASSING :param_2 AS "v") OR JSON_EXISTS(locus_store.value, '$."n"[*]?(@.stringOnly() == $v)' PASSING :param_3 AS "v")) ORDER BY locus_store.updated_at DESC, locus_store.item DESC
 OFFSET :offset ROWS
 FETCH FIRST :limit ROWS ONLY
