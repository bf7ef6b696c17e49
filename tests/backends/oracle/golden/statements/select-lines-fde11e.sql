-- line_1_1: int as int
-- line_1_2: int as int
SELECT locus_lines.thread_id, locus_lines.line, locus_lines.floor, locus_lines.head, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.created_at, locus_checkpoints.payload, locus_checkpoints.checkpoint_id, CAST(NULL AS NUMBER(19)) AS last
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_lines.line IN (:line_1_1, :line_1_2) UNION ALL SELECT locus_lines.thread_id, locus_lines.line, locus_lines.floor, locus_lines.head, locus_segments.first, locus_segments.chain, locus_lines.updated_at, locus_segments.payload, NULL AS anon_1, locus_segments.last
FROM locus_lines JOIN locus_segments ON locus_segments.line = locus_lines.line
WHERE locus_lines.line IN (:line_1_1, :line_1_2)
