-- revision_1: int as int
-- turn_1: int as int
DELETE FROM locus_turns WHERE locus_turns.revision = :revision_1 AND locus_turns.turn = :turn_1
