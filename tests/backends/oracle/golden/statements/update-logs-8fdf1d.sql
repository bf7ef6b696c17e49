-- revision: int as int
-- message_count: int as int
-- last_sequence: int as int
-- thread_1: int as int
-- namespace_1: str
UPDATE locus_logs SET revision=:revision, message_count=:message_count, last_sequence=:last_sequence, changed_at=CASE WHEN (locus_logs.changed_at < FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') ELSE locus_logs.changed_at END WHERE locus_logs.thread = :thread_1 AND locus_logs.namespace = :namespace_1
