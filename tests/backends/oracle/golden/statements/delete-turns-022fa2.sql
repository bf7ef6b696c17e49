-- tenant_1: str
-- param_1: float
-- thread_id_1_1: str
DELETE FROM locus_turns WHERE locus_turns.tenant = :tenant_1 AND locus_turns.expires_at <= (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND')) AND locus_turns.thread_id IN (:thread_id_1_1)
