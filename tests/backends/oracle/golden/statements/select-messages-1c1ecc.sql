-- thread: int as int
-- namespace: str
-- offset: int as int
SELECT locus_messages.sequence
FROM locus_messages
WHERE locus_messages.thread = :thread AND locus_messages.namespace = :namespace ORDER BY locus_messages.sequence
 OFFSET :offset ROWS
 FETCH FIRST 1 ROWS ONLY
