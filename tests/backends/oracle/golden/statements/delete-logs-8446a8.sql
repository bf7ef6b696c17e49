-- thread_1: int as int
-- namespace_1: str
DELETE FROM locus_logs WHERE locus_logs.thread = :thread_1 AND locus_logs.namespace = :namespace_1
