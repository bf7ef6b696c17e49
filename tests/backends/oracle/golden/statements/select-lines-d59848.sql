-- line_1_1: int as int
-- line_1_2: int as int
SELECT locus_lines.thread_id, locus_lines.line, locus_lines.floor, locus_lines.head, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_checkpoints.line IN (:line_1_1, :line_1_2) ORDER BY locus_checkpoints.line DESC, locus_checkpoints.sequence
