-- line_1: int as int
DELETE FROM locus_lines WHERE locus_lines.line = :line_1
