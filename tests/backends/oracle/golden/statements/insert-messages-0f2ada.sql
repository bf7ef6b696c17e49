-- tenant_1: str
-- tenant_2: str
-- thread_id_1_1: str
-- thread_id_2_1: str
INSERT INTO locus_messages (thread, namespace, sequence, message_id, role, metadata, created_at, digest, text, payload) SELECT (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)) AS anon_1, locus_messages.namespace, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.digest, locus_messages.text, locus_messages.payload
FROM locus_messages
WHERE locus_messages.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_2 AND locus_threads.thread_id IN (:thread_id_2_1))
