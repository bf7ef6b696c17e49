-- turn: int as int
-- expires_at: datetime as DB_TYPE_TIMESTAMP
-- revision: int as int
-- tickets: dict as DB_TYPE_JSON
-- tenant_1: str
-- thread_id_1: str
-- revision_1: int as int
-- turn_1: int as int
UPDATE locus_turns SET turn=:turn, expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00'), revision=:revision, tickets=:tickets WHERE locus_turns.tenant = :tenant_1 AND locus_turns.thread_id = :thread_id_1 AND locus_turns.revision = :revision_1 AND locus_turns.turn = :turn_1
