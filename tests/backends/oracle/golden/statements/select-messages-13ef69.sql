-- thread_1: int as int
SELECT locus_messages.namespace, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload, locus_messages.digest
FROM locus_messages
WHERE locus_messages.thread = :thread_1 ORDER BY locus_messages.namespace, locus_messages.sequence
