-- line_1_1: int as int
DELETE FROM locus_checkpoints WHERE locus_checkpoints.line IN (:line_1_1)
