-- tenant_1: str
-- namespace_1: str
-- key_1: str
SELECT locus_embeddings.embedding
FROM locus_store JOIN locus_embeddings ON locus_store.item = locus_embeddings.item
WHERE locus_store.tenant = :tenant_1 AND locus_store.namespace = :namespace_1 AND locus_store.key = :key_1 AND (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) ORDER BY locus_embeddings.part
