-- tenant: str
-- thread_id: str
-- namespace: str
-- after: str
SELECT locus_messages.thread, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload, locus_messages.digest
FROM locus_messages
WHERE locus_messages.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id) AND locus_messages.namespace = :namespace AND locus_messages.sequence > (SELECT places.sequence
FROM locus_messages places JOIN locus_threads ON locus_threads.thread = places.thread
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND places.namespace = :namespace AND places.message_id = :after) ORDER BY locus_messages.sequence
