-- tenant: str
-- thread_id: str
-- turn: int as int
-- expires_at: datetime as DB_TYPE_TIMESTAMP
-- revision: int as int
-- tickets: dict as DB_TYPE_JSON
INSERT INTO locus_turns (tenant, thread_id, turn, expires_at, revision, tickets) VALUES (:tenant, :thread_id, :turn, FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00'), :revision, :tickets)
