-- thread: int as int
-- namespace: str
-- message_id_0: str
-- message_id_1: str
-- message_id_2: str
-- message_id_3: str
-- message_id_4: str
-- message_id_5: str
-- message_id_6: str
-- message_id_7: str
-- message_id_8: str
-- message_id_9: str
-- message_id_10: str
-- message_id_11: str
-- message_id_12: str
-- message_id_13: str
-- message_id_14: str
-- message_id_15: str
SELECT locus_messages.message_id
FROM locus_messages
WHERE locus_messages.thread = :thread AND locus_messages.namespace = :namespace AND locus_messages.message_id IN (:message_id_0, :message_id_1, :message_id_2, :message_id_3, :message_id_4, :message_id_5, :message_id_6, :message_id_7, :message_id_8, :message_id_9, :message_id_10, :message_id_11, :message_id_12, :message_id_13, :message_id_14, :message_id_15)
