-- line_1: int as int
-- sequence_1_1: int as int
SELECT min(locus_packs.sequence) AS min_1
FROM locus_packs
WHERE locus_packs.line = :line_1 AND locus_packs.sequence IN (:sequence_1_1)
