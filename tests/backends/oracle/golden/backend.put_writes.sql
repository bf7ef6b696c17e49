6 calls of the driver

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND locus_lines.head IS NOT NULL FOR UPDATE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, CASE WHEN (locus_threads.active_at = FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_noted
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- execute
--   line: int as int
--   checkpoint_id: str
SELECT locus_writes.task_id, locus_writes.idx
FROM locus_writes
WHERE locus_writes.line = :line AND locus_writes.checkpoint_id = :checkpoint_id

-- execute
--   line: int as int
--   checkpoint_id: str
--   task_id: str
--   idx: int as int
--   channel: str
--   type: str
--   task_path: str as DB_TYPE_NVARCHAR
--   basis: NULL as int
--   payload: bytes as DB_TYPE_RAW
MERGE INTO locus_writes t USING (SELECT :line AS line, :checkpoint_id AS checkpoint_id, :task_id AS task_id, :idx AS idx FROM dual) s ON (t.line = s.line AND t.checkpoint_id = s.checkpoint_id AND t.task_id = s.task_id AND t.idx = s.idx) WHEN MATCHED THEN UPDATE SET created_at = FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), channel = :channel, type = :type, task_path = :task_path, basis = :basis, payload = :payload WHEN NOT MATCHED THEN INSERT (line, checkpoint_id, task_id, idx, created_at, channel, type, task_path, basis, payload) VALUES (s.line, s.checkpoint_id, s.task_id, s.idx, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :channel, :type, :task_path, :basis, :payload)

-- commit
