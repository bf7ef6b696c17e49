-- line: int as int
-- chain: int as int
-- after: int as int
-- upto: int as int
SELECT locus_segments.chain, locus_segments.first, locus_segments.last, locus_segments.payload
FROM locus_segments
WHERE locus_segments.line = :line AND locus_segments.chain = :chain AND locus_segments.last > :after AND locus_segments.first <= :upto ORDER BY locus_segments.last
