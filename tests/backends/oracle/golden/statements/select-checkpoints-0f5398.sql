-- line_1: int as int
-- sequence_1: int as int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence < :sequence_1 ORDER BY locus_checkpoints.sequence
 FETCH FIRST 66 ROWS ONLY
