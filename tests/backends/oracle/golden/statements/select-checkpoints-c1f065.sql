-- line: int as int
-- offset: int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line ORDER BY locus_checkpoints.sequence DESC
 OFFSET :offset ROWS
 FETCH FIRST 1 ROWS ONLY
