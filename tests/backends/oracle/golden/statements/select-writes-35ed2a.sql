-- param_1: str
-- line_1_1: int as int
-- checkpoint_id_1_1: str
-- checkpoint_id_1_2: str
-- checkpoint_id_1_3: str
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line IN (:line_1_1) AND (SELECT locus_lines.tenant
FROM locus_lines
WHERE locus_lines.line = locus_writes.line) = :param_1 AND locus_writes.checkpoint_id IN (:checkpoint_id_1_1, :checkpoint_id_1_2, :checkpoint_id_1_3)
