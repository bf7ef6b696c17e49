-- tenant_1: str
-- thread_id_1_1: str
-- thread_id_1_2: str
SELECT locus_lines.thread_id, count(*) AS count_1
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1, :thread_id_1_2) AND (locus_checkpoints.sequence >= locus_lines.floor OR locus_checkpoints.sequence = locus_lines.head) GROUP BY locus_lines.thread_id
