-- line: int as int
-- upto: int as int
-- chain: int as int
SELECT locus_packs.sequence, locus_packs.payload
FROM locus_packs
WHERE locus_packs.line = :line AND locus_packs.sequence <= :upto AND (EXISTS (SELECT *
FROM locus_checkpoints packed
WHERE packed.line = locus_packs.line AND packed.sequence = locus_packs.sequence AND packed.digest = locus_packs.digest AND packed.chain = :chain)) ORDER BY locus_packs.sequence
