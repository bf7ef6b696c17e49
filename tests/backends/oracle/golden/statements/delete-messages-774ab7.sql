-- thread: int as int
-- namespace: str
-- sequence: int as int
DELETE FROM locus_messages WHERE locus_messages.thread = :thread AND locus_messages.namespace = :namespace AND locus_messages.sequence >= :sequence
