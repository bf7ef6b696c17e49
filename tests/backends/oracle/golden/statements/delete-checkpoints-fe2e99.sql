-- line_1: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line = :line_1
