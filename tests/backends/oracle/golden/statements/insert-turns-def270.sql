-- of_tenant: str
-- of_thread_id: str
-- turn: int as int
-- expires_at: datetime as DB_TYPE_TIMESTAMP
-- revision: int as int
-- tickets: dict as DB_TYPE_JSON
-- name_1: str
-- value_1: str
-- value_2: str
INSERT INTO locus_turns (tenant, thread_id, turn, expires_at, revision, tickets) SELECT :of_tenant AS anon_1, :of_thread_id AS anon_2, :turn AS anon_3, FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00') AS anon_4, :revision AS anon_5, :tickets AS anon_6 FROM DUAL
WHERE NOT (EXISTS (SELECT *
FROM locus_settings
WHERE locus_settings.name = :name_1 AND locus_settings.value != :value_1 AND locus_settings.value NOT LIKE :value_2))
