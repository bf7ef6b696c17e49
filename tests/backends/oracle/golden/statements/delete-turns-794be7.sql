-- tenant: str
-- thread_0: str
-- param_1: float
DELETE FROM locus_turns WHERE locus_turns.tenant = :tenant AND locus_turns.thread_id IN (:thread_0) AND locus_turns.expires_at <= (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))
