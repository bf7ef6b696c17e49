-- thread: int as int
-- namespace: str
DELETE FROM locus_logs WHERE locus_logs.thread = :thread AND locus_logs.namespace = :namespace
