-- text: NULL as DB_TYPE_NVARCHAR
-- payload: bytes as DB_TYPE_RAW
-- of_line: int as int
-- sequence_0: int as int
UPDATE locus_checkpoints SET text=:text, payload=:payload WHERE locus_checkpoints.line = :of_line AND locus_checkpoints.sequence IN (:sequence_0)
