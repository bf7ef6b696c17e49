-- line_1: int as int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence DESC
 OFFSET 0 ROWS
 FETCH FIRST 1 ROWS ONLY
