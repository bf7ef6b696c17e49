-- tenant: str
-- thread_id: str
-- expires_at: NULL as DB_TYPE_TIMESTAMP
-- ret_0: TwinVar as int
INSERT INTO locus_threads (tenant, thread_id, created_at, active_at, expires_at) VALUES (:tenant, :thread_id, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00'), FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00')) RETURNING locus_threads.thread INTO :ret_0
