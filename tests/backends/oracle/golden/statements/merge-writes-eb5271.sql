-- line: int as int
-- checkpoint_id: str
-- task_id: str
-- idx: int as int
-- channel: str
-- type: str
-- task_path: str as DB_TYPE_NVARCHAR
-- basis: NULL as int
-- payload: bytes as DB_TYPE_RAW
MERGE INTO locus_writes t USING (SELECT :line AS line, :checkpoint_id AS checkpoint_id, :task_id AS task_id, :idx AS idx FROM dual) s ON (t.line = s.line AND t.checkpoint_id = s.checkpoint_id AND t.task_id = s.task_id AND t.idx = s.idx) WHEN MATCHED THEN UPDATE SET created_at = FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), channel = :channel, type = :type, task_path = :task_path, basis = :basis, payload = :payload WHEN NOT MATCHED THEN INSERT (line, checkpoint_id, task_id, idx, created_at, channel, type, task_path, basis, payload) VALUES (s.line, s.checkpoint_id, s.task_id, s.idx, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :channel, :type, :task_path, :basis, :payload)
