-- thread: int as int
-- namespace: str
SELECT locus_messages.namespace, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload, locus_messages.digest
FROM locus_messages
WHERE locus_messages.thread = :thread AND locus_messages.namespace = :namespace ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY
