-- thread: int as int
-- namespace: str
-- sequence: int as int
-- message_id: str
-- role: str
-- metadata: NULL as DB_TYPE_JSON
-- digest: bytes
-- text: NULL as DB_TYPE_NVARCHAR
-- payload: bytes as DB_TYPE_RAW
INSERT INTO locus_messages (thread, namespace, sequence, message_id, role, metadata, created_at, digest, text, payload) VALUES (:thread, :namespace, :sequence, :message_id, :role, :metadata, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :digest, :text, :payload)
