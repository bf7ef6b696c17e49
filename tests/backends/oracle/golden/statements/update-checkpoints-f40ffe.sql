-- parent: int as int
-- line_1: int as int
-- sequence_1_1: int as int
UPDATE locus_checkpoints SET parent=:parent WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)
