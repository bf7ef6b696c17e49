-- of_line: int as int
-- sequence_0: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :of_line AND locus_checkpoints.sequence IN (:sequence_0)
