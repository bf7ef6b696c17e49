-- tenant: str
-- thread_id: str
-- turn: int as int
-- revision: int as int
-- tickets: dict as DB_TYPE_JSON
INSERT INTO locus_turns (tenant, thread_id, turn, expires_at, revision, tickets) VALUES (:tenant, :thread_id, :turn, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :revision, :tickets)
