-- line_1_1: int as int
DELETE FROM locus_segments WHERE locus_segments.line IN (:line_1_1)
