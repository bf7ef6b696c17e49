-- line_1: int as int
-- sequence_1: int as int
-- sequence_2: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence <= :sequence_1 AND locus_checkpoints.chain IN (SELECT DISTINCT locus_checkpoints.chain
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence <= :sequence_1 AND locus_checkpoints.sequence >= :sequence_2) ORDER BY locus_checkpoints.sequence
