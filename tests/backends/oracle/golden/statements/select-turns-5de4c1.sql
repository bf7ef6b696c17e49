-- tenant_1: str
-- turn_1: int as int
-- expires_at_1: datetime as DB_TYPE_TIMESTAMP
SELECT locus_turns.thread_id, locus_turns.tickets, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1
FROM locus_turns
WHERE locus_turns.tenant = :tenant_1 AND locus_turns.turn >= :turn_1 AND locus_turns.expires_at > FROM_TZ(CAST(:expires_at_1 AS TIMESTAMP), '+00:00') ORDER BY locus_turns.thread_id
 FETCH FIRST 100 ROWS ONLY
