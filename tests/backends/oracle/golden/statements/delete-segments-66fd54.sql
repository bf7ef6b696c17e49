-- line_1: int as int
DELETE FROM locus_segments WHERE locus_segments.line = :line_1
