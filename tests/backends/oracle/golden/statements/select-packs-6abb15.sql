-- line_1: int as int
SELECT max(locus_packs.sequence) AS max_1
FROM locus_packs
WHERE locus_packs.line = :line_1
