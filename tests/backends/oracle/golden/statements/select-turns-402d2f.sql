-- turn_1: int as int
-- tenant_1: str
-- thread_id_1: str
SELECT locus_turns.tickets, locus_turns.revision, locus_turns.turn
FROM locus_turns
WHERE locus_turns.turn < :turn_1 AND locus_turns.tenant = :tenant_1 AND locus_turns.thread_id = :thread_id_1
