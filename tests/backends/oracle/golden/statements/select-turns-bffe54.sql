-- turn_1: int as int
SELECT locus_turns.tickets, locus_turns.revision, locus_turns.turn
FROM locus_turns
WHERE locus_turns.turn < :turn_1
