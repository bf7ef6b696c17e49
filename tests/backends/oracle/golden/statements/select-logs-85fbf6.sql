-- thread_1: int as int
SELECT locus_logs.namespace, locus_logs.revision, locus_logs.last_sequence, locus_logs.changed_at
FROM locus_logs
WHERE locus_logs.thread = :thread_1
