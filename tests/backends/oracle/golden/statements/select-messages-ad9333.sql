-- thread_1: int as int
-- namespace_1: str
SELECT locus_messages.sequence
FROM locus_messages
WHERE locus_messages.thread = :thread_1 AND locus_messages.namespace = :namespace_1 ORDER BY locus_messages.sequence
 OFFSET 1 ROWS
 FETCH FIRST 1 ROWS ONLY
