-- payload: bytes as DB_TYPE_RAW
-- line_1: int as int
-- its_sequence: int as int
UPDATE locus_checkpoints SET payload=:payload WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence = :its_sequence
