-- thread_1: int as int
-- namespace_1: str
-- message_id_1_1: str
-- message_id_1_2: str
DELETE FROM locus_messages WHERE locus_messages.thread = :thread_1 AND locus_messages.namespace = :namespace_1 AND locus_messages.message_id IN (:message_id_1_1, :message_id_1_2)
