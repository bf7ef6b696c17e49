-- line_1_1: int as int
-- line_1_2: int as int
DELETE FROM locus_writes WHERE locus_writes.line IN (:line_1_1, :line_1_2)
