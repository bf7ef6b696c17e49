-- line_1: int as int
DELETE FROM locus_packs WHERE locus_packs.line = :line_1
