-- of_tenant: str
-- of_thread_id: str
UPDATE locus_threads SET active_at=FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') WHERE locus_threads.tenant = :of_tenant AND locus_threads.thread_id = :of_thread_id AND locus_threads.active_at != FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')
