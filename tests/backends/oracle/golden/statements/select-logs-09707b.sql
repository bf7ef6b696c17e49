-- thread: int as int
-- namespace: str
SELECT locus_logs.revision, locus_logs.message_count, locus_logs.last_sequence
FROM locus_logs
WHERE locus_logs.thread = :thread AND locus_logs.namespace = :namespace
