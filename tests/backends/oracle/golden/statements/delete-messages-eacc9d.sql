-- thread_1: int as int
-- namespace_1: str
DELETE FROM locus_messages WHERE locus_messages.thread = :thread_1 AND locus_messages.namespace = :namespace_1
