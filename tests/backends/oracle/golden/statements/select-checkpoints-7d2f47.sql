-- tenant: str
-- param_1_1_1: int as int
-- param_1_1_2: int as int
-- param_1_2_1: int as int
-- param_1_2_2: int as int
SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata, locus_checkpoints.created_at
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE (locus_checkpoints.line, locus_checkpoints.sequence) IN ((:param_1_1_1, :param_1_1_2), (:param_1_2_1, :param_1_2_2)) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL
