-- revision: int as int
-- message_count: int as int
-- last_sequence: int as int
-- of_thread: int as int
-- of_namespace: str
UPDATE locus_logs SET revision=:revision, message_count=:message_count, last_sequence=:last_sequence, changed_at=CASE WHEN (locus_logs.changed_at < FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') ELSE locus_logs.changed_at END WHERE locus_logs.thread = :of_thread AND locus_logs.namespace = :of_namespace
