-- line_1: int as int
-- sequence_1: int as int
-- sequence_2: int as int
SELECT locus_checkpoints.sequence, length(locus_checkpoints.payload) AS length_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence BETWEEN :sequence_1 AND :sequence_2
