4 calls of the driver

-- execute, commits
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute, commits
--   tenant_1: str
--   tenant_2: str
--   namespace_1: str
SELECT locus_lines.line, (SELECT sum(length(locus_checkpoints.payload)) AS sum_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = locus_lines.line) AS anon_1
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant_2 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL ORDER BY locus_lines.line DESC

-- execute, commits
--   line_1_1: int as int
--   line_1_2: int as int
SELECT locus_lines.thread_id, locus_lines.line, locus_lines.floor, locus_lines.head, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_checkpoints.line IN (:line_1_1, :line_1_2) ORDER BY locus_checkpoints.line DESC, locus_checkpoints.sequence

-- execute, commits
--   tenant_1: str
--   param_1_1_1: int as int
--   param_1_1_2: int as int
SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata, locus_checkpoints.created_at
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE (locus_checkpoints.line, locus_checkpoints.sequence) IN ((:param_1_1_1, :param_1_1_2)) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL
