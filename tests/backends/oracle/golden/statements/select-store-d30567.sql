-- param_1: int as int
-- param_2: int as int
-- tenant_1: str
-- namespace_1: str
-- namespace_2: str
SELECT locus_store.item, locus_store.namespace, locus_store.key, locus_store.version, locus_store.created_at, CASE WHEN (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_live
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace >= :namespace_1 AND locus_store.namespace < :namespace_2 ORDER BY locus_store.namespace, locus_store.key FOR UPDATE
