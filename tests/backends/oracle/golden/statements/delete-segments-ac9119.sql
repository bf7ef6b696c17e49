-- line_1: int as int
-- last_1: int as int
DELETE FROM locus_segments WHERE locus_segments.line = :line_1 AND locus_segments.last = :last_1
