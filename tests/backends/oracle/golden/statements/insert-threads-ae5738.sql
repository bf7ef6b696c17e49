-- param_1: str
-- tenant_1: str
-- name_1: str
-- value_1: str
-- value_2: str
-- thread_id_1_1: str
INSERT INTO locus_threads (thread_id, active_at, tenant, user_id, name, metadata, created_at, expires_at) SELECT :param_1 AS anon_1, CASE WHEN ((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) IS NOT NULL) THEN FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') ELSE locus_threads.active_at END AS anon_2, locus_threads.tenant, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) AND NOT (EXISTS (SELECT *
FROM locus_settings
WHERE locus_settings.name = :name_1 AND locus_settings.value != :value_1 AND locus_settings.value NOT LIKE :value_2))
