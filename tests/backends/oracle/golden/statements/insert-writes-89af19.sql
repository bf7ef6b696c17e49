-- line: int as int
-- checkpoint_id: str
-- task_id: str
-- idx: int as int
-- channel: str
-- type: str
-- task_path: str as DB_TYPE_NVARCHAR
-- basis: NULL as int
-- payload: bytes as DB_TYPE_RAW
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, type, task_path, basis, created_at, payload) VALUES (:line, :checkpoint_id, :task_id, :idx, :channel, :type, :task_path, :basis, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :payload)
