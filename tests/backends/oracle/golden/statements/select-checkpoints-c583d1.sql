-- line: int as int
-- chain: int as int
-- first: int as int
-- upto: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.chain = :chain AND locus_checkpoints.sequence >= :first AND locus_checkpoints.sequence <= :upto AND locus_checkpoints.payload IS NOT NULL ORDER BY locus_checkpoints.sequence
