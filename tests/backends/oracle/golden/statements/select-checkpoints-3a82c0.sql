-- line: int as int
-- sequence: int as int
-- limit: int
SELECT locus_checkpoints.sequence
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.sequence < :sequence ORDER BY locus_checkpoints.sequence
 FETCH FIRST :limit ROWS ONLY
