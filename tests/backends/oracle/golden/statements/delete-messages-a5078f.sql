-- thread: int as int
-- namespace: str
DELETE FROM locus_messages WHERE locus_messages.thread = :thread AND locus_messages.namespace = :namespace
