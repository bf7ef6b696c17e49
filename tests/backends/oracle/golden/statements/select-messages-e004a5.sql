-- tenant_1: str
-- namespace_1: str
-- tenant_2: str
-- namespace_2: str
-- message_id_1: str
-- thread_id_1_1: str
-- thread_id_2_1: str
SELECT locus_messages.thread, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload, locus_messages.digest
FROM locus_messages
WHERE locus_messages.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)) AND locus_messages.namespace = :namespace_1 AND locus_messages.sequence > (SELECT places.sequence
FROM locus_messages places JOIN locus_threads ON locus_threads.thread = places.thread
WHERE locus_threads.tenant = :tenant_2 AND locus_threads.thread_id IN (:thread_id_2_1) AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND places.namespace = :namespace_2 AND places.message_id = :message_id_1) ORDER BY locus_messages.sequence
