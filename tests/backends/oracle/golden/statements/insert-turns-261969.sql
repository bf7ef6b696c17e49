-- param_1: str
-- param_2: str
-- param_3: int as int
-- param_4: datetime as DB_TYPE_TIMESTAMP
-- param_5: int as int
-- param_6: dict as DB_TYPE_JSON
-- name_1: str
-- value_1: str
-- value_2: str
INSERT INTO locus_turns (tenant, thread_id, turn, expires_at, revision, tickets) SELECT :param_1 AS anon_1, :param_2 AS anon_2, :param_3 AS anon_3, FROM_TZ(CAST(:param_4 AS TIMESTAMP), '+00:00') AS anon_4, :param_5 AS anon_5, :param_6 AS anon_6 FROM DUAL
WHERE NOT (EXISTS (SELECT *
FROM locus_settings
WHERE locus_settings.name = :name_1 AND locus_settings.value != :value_1 AND locus_settings.value NOT LIKE :value_2))
