-- line_1_1: int as int
DELETE FROM locus_lines WHERE locus_lines.line IN (:line_1_1)
