-- line_1: int as int
-- chain_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.digest, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.chain = :chain_1 AND locus_checkpoints.payload IS NOT NULL ORDER BY locus_checkpoints.sequence
 FETCH FIRST 2 ROWS ONLY
