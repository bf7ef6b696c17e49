-- param_1: float
-- tenant_1: str
-- thread_id_1: str
-- param_2: float
UPDATE locus_threads SET expires_at=(FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(:param_1 AS DOUBLE PRECISION), 'SECOND')) WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1 AND locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AND locus_threads.expires_at <= (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(:param_2 AS DOUBLE PRECISION), 'SECOND'))
