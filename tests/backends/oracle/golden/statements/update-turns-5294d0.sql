-- turn: int as int
-- expires_at: datetime as DB_TYPE_TIMESTAMP
-- revision: int as int
-- tickets: dict as DB_TYPE_JSON
-- of_tenant: str
-- of_thread_id: str
-- of_revision: int as int
UPDATE locus_turns SET turn=:turn, expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00'), revision=:revision, tickets=:tickets WHERE locus_turns.tenant = :of_tenant AND locus_turns.thread_id = :of_thread_id AND locus_turns.revision = :of_revision
