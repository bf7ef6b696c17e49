-- line_1: int as int
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.line = :line_1 FOR UPDATE
