-- text: str as DB_TYPE_NVARCHAR
-- line_1: int as int
-- sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)
