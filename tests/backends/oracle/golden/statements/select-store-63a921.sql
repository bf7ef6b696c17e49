-- tenant: str
-- namespace: str
-- key: str
SELECT locus_store.namespace, locus_store.key, locus_embeddings.part, locus_embeddings.embedding
FROM locus_store JOIN locus_embeddings ON locus_store.item = locus_embeddings.item
WHERE (locus_store.expires_at IS NULL OR locus_store.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_store.tenant = :tenant AND locus_store.namespace = :namespace AND locus_store.key = :key
