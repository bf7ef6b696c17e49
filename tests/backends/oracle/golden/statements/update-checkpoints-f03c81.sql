-- text: str as DB_TYPE_NVARCHAR
-- of_line: int as int
-- sequence_0: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :of_line AND locus_checkpoints.sequence IN (:sequence_0)
