-- line_1: int as int
SELECT locus_packs.sequence, locus_packs.basis, locus_packs.digest, locus_packs.payload
FROM locus_packs
WHERE locus_packs.line = :line_1 ORDER BY locus_packs.sequence
