-- tenant_1: str
-- namespace_1: str
-- message_id_1: str
-- thread_id_1_1: str
SELECT (SELECT places.sequence
FROM locus_messages places JOIN locus_threads ON locus_threads.thread = places.thread
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND places.namespace = :namespace_1 AND places.message_id = :message_id_1) AS anon_1 FROM DUAL
