-- line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.digest
FROM locus_checkpoints JOIN locus_packs ON locus_checkpoints.line = locus_packs.line AND locus_checkpoints.sequence = locus_packs.sequence
WHERE locus_packs.line = :line_1
