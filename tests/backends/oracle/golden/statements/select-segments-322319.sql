-- line_1_1: int as int
SELECT locus_segments.line, locus_segments.chain, locus_segments.first, locus_segments.last, locus_segments.payload
FROM locus_segments
WHERE locus_segments.line IN (:line_1_1) ORDER BY locus_segments.last
