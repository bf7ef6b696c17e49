-- tenant_1: str
SELECT locus_turns.tickets, locus_turns.revision, locus_turns.turn
FROM locus_turns
WHERE locus_turns.tenant = :tenant_1
