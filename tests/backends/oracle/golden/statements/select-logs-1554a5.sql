-- thread_1: int as int
-- namespace_1: str
SELECT locus_logs.thread, locus_logs.namespace, locus_logs.revision, locus_logs.message_count, locus_logs.last_sequence, locus_logs.changed_at
FROM locus_logs
WHERE locus_logs.thread = :thread_1 AND locus_logs.namespace = :namespace_1
