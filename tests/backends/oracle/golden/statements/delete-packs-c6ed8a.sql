-- line_1_1: int as int
DELETE FROM locus_packs WHERE locus_packs.line IN (:line_1_1)
