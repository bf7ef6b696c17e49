-- tenant: str
-- thread_id: str
-- name_1: str
-- layout: str
-- value_1: str
INSERT INTO locus_threads (tenant, thread_id, created_at, active_at) SELECT :tenant AS anon_1, :thread_id AS anon_2, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1, FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') AS minute_1 FROM DUAL
WHERE NOT (EXISTS (SELECT *
FROM locus_settings
WHERE locus_settings.name = :name_1 AND locus_settings.value != :layout AND locus_settings.value NOT LIKE :value_1))
