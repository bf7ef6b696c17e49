-- line_1: int as int
-- sequence_1_1: int as int
SELECT locus_checkpoints.chain, min(locus_checkpoints.sequence) AS min_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1) GROUP BY locus_checkpoints.chain
