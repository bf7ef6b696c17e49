16 calls of the driver

-- execute
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   name_1: str
SELECT locus_settings.name
FROM locus_settings
WHERE locus_settings.name = :name_1 FOR UPDATE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

-- execute
--   param_1: str
--   tenant_1: str
--   thread_id_1_1: str
INSERT INTO locus_threads (thread_id, tenant, user_id, name, metadata, created_at, active_at, expires_at) SELECT :param_1 AS anon_1, locus_threads.tenant, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.active_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.namespace
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1: str
--   namespace_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 AND locus_lines.namespace = :namespace_1

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
--   ret_0: TwinVar as int
INSERT INTO locus_lines (tenant, thread_id, namespace, updated_at) VALUES (:tenant, :thread_id, :namespace, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) RETURNING locus_lines.line INTO :ret_0

-- execute
--   line_1: int as int
SELECT locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence
FROM locus_lines
WHERE locus_lines.line = :line_1

-- execute
--   head: int as int
--   open_chain: int as int
--   open_bytes: int as int
--   floor: int as int
--   last_sequence: int as int
--   line_1: int as int
UPDATE locus_lines SET head=:head, open_chain=:open_chain, open_bytes=:open_bytes, floor=:floor, last_sequence=:last_sequence WHERE locus_lines.line = :line_1

-- execute
--   param_1: int as int
--   line_1: int as int
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata, labels, created_at, text, payload) SELECT :param_1 AS anon_1, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.codec, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.text, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1

-- execute
--   param_1: int as int
--   line_1: int as int
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, type, task_path, basis, created_at, payload) SELECT :param_1 AS anon_1, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- commit
