-- tenant_1: str
-- param_1: float
DELETE FROM locus_turns WHERE locus_turns.tenant = :tenant_1 AND locus_turns.expires_at <= (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND')) AND NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.tenant = locus_turns.tenant AND locus_threads.thread_id = locus_turns.thread_id))
