-- tenant_1: str
-- param_1: str
SELECT locus_store.item, locus_store.metadata
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND JSON_EXISTS(locus_store.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") FOR UPDATE
