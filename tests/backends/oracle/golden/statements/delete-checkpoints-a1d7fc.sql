-- line_1: int as int
-- sequence_1_1: int as int
-- sequence_1_2: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1, :sequence_1_2)
