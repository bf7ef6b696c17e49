-- thread: int as int
-- namespace: str
-- revision: int as int
-- message_count: int as int
-- last_sequence: int as int
INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at) VALUES (:thread, :namespace, :revision, :message_count, :last_sequence, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
