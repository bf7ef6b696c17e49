-- new_role: str
-- new_metadata: NULL as DB_TYPE_JSON
-- new_digest: bytes
-- new_text: NULL as DB_TYPE_NVARCHAR
-- new_payload: bytes as DB_TYPE_RAW
-- new_thread: int as int
-- new_namespace: str
-- new_message_id: str
UPDATE locus_messages SET role=:new_role, metadata=:new_metadata, digest=:new_digest, text=:new_text, payload=:new_payload WHERE locus_messages.thread = :new_thread AND locus_messages.namespace = :new_namespace AND locus_messages.message_id = :new_message_id
