-- new_role: str
-- new_metadata: NULL as DB_TYPE_JSON
-- new_digest: bytes
-- new_text: NULL as DB_TYPE_NVARCHAR
-- new_payload: bytes as DB_TYPE_RAW
-- thread_1: int as int
-- namespace_1: str
-- of_id: str
UPDATE locus_messages SET role=:new_role, metadata=:new_metadata, digest=:new_digest, text=:new_text, payload=:new_payload WHERE locus_messages.thread = :thread_1 AND locus_messages.namespace = :namespace_1 AND locus_messages.message_id = :of_id
