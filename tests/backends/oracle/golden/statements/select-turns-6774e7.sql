-- tenant_1: str
-- thread_id_1: str
SELECT locus_turns.tickets, locus_turns.revision, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS at
FROM locus_turns
WHERE locus_turns.tenant = :tenant_1 AND locus_turns.thread_id = :thread_id_1
