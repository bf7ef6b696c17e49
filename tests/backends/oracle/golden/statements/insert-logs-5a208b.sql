-- thread: int as int
-- namespace: str
-- revision: int as int
-- message_count: int as int
-- last_sequence: int as int
-- changed_at: datetime as DB_TYPE_TIMESTAMP
INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at) VALUES (:thread, :namespace, :revision, :message_count, :last_sequence, FROM_TZ(CAST(:changed_at AS TIMESTAMP), '+00:00'))
