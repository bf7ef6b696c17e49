7 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   tenant_1: str
--   tenant_2: str
--   namespace_1: str
SELECT locus_lines.thread_id, locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant_2 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL ORDER BY locus_lines.line DESC

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line: int as int
--   floor: int as int
--   head: int as int
--   first: int as int
--   last: int as int
--   limit: int
SELECT locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id
FROM locus_checkpoints LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent
WHERE locus_checkpoints.line = :line AND (locus_checkpoints.sequence >= :floor OR locus_checkpoints.sequence = :head) AND locus_checkpoints.sequence >= :first AND locus_checkpoints.sequence <= :last ORDER BY locus_checkpoints.sequence DESC
 FETCH FIRST :limit ROWS ONLY

-- commit
