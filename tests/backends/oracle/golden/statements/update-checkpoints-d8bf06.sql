-- payload: NULL as DB_TYPE_RAW
-- line_1: int as int
-- sequence_1_1: int as int
-- sequence_1_2: int as int
UPDATE locus_checkpoints SET payload=:payload WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1, :sequence_1_2)
