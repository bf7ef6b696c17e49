-- of_tenant: str
-- of_thread_id: str
SELECT locus_turns.tickets, locus_turns.revision, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1
FROM locus_turns
WHERE locus_turns.tenant = :of_tenant AND locus_turns.thread_id = :of_thread_id
