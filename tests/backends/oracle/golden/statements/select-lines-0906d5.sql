-- line_1: int as int
SELECT locus_lines.thread_id, locus_lines.updated_at
FROM locus_lines
WHERE locus_lines.line = :line_1 FOR UPDATE
