32 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread, locus_threads.thread_id, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.active_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_lines.line, locus_lines.tenant, locus_lines.thread_id, locus_lines.namespace, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, locus_lines.updated_at
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 ORDER BY locus_lines.line

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line_1: int as int
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line_1

-- execute
--   thread_1: int as int
SELECT locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload
FROM locus_messages
WHERE locus_messages.thread = :thread_1 ORDER BY locus_messages.sequence

-- commit

-- execute
SET TRANSACTION READ ONLY

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread, locus_threads.thread_id, locus_threads.user_id, locus_threads.name, locus_threads.metadata, locus_threads.created_at, locus_threads.active_at, locus_threads.expires_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))

-- commit

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
--   tenant_1: str
--   thread_id_1_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1) FOR UPDATE

-- execute
--   param_1: int as int
--   param_2: int as int
--   tenant: str
--   thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id

-- execute
--   tenant: str
--   thread_id: str
--   expires_at: NULL as DB_TYPE_TIMESTAMP
--   ret_0: TwinVar as int
INSERT INTO locus_threads (tenant, thread_id, created_at, active_at, expires_at) VALUES (:tenant, :thread_id, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00'), FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00')) RETURNING locus_threads.thread INTO :ret_0

-- execute
--   user_id: NULL
--   name: NULL
--   metadata: NULL as DB_TYPE_JSON
--   created_at: datetime as DB_TYPE_TIMESTAMP
--   active_at: datetime as DB_TYPE_TIMESTAMP
--   expires_at: NULL as DB_TYPE_TIMESTAMP
--   tenant_1: str
--   thread_id_1: str
UPDATE locus_threads SET user_id=:user_id, name=:name, metadata=:metadata, created_at=FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), active_at=FROM_TZ(CAST(:active_at AS TIMESTAMP), '+00:00'), expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00') WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
--   ret_0: TwinVar as int
INSERT INTO locus_lines (tenant, thread_id, namespace, updated_at) VALUES (:tenant, :thread_id, :namespace, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) RETURNING locus_lines.line INTO :ret_0

-- executemany
--   line: int as int
--   sequence: int as int
--   chain: int as int
--   parent: NULL or int as int
--   checkpoint_id: str
--   digest: bytes
--   metadata: dict as DB_TYPE_JSON
--   labels: NULL as DB_TYPE_JSON
--   created_at: datetime as DB_TYPE_TIMESTAMP
--   payload: bytes as DB_TYPE_RAW
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, metadata, labels, created_at, payload) VALUES (:line, :sequence, :chain, :parent, :checkpoint_id, :digest, :metadata, :labels, FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), :payload)

-- execute
--   line: int as int
--   checkpoint_id: str
--   task_id: str
--   idx: int as int
--   channel: str
--   type: str
--   task_path: str as DB_TYPE_NVARCHAR
--   basis: NULL as int
--   created_at: datetime as DB_TYPE_TIMESTAMP
--   payload: bytes as DB_TYPE_RAW
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, type, task_path, basis, created_at, payload) VALUES (:line, :checkpoint_id, :task_id, :idx, :channel, :type, :task_path, :basis, FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), :payload)

-- execute
--   line: int as int
--   sequence: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.sequence = :sequence

-- execute
--   line: int as int
--   chain: int as int
--   upto: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.chain = :chain AND locus_checkpoints.sequence >= :chain AND locus_checkpoints.sequence <= :upto ORDER BY locus_checkpoints.sequence

-- execute
--   new_head: int as int
--   new_open_chain: int as int
--   new_open_bytes: int as int
--   new_floor: int as int
--   new_last_sequence: int as int
--   new_writer: NULL
--   new_run: NULL
--   is_save: int as int
--   param_1: int as int
--   of_line: int as int
UPDATE locus_lines SET head=:new_head, open_chain=:new_open_chain, open_bytes=:new_open_bytes, floor=:new_floor, last_sequence=:new_last_sequence, writer=:new_writer, run=:new_run, updated_at=CASE WHEN (:is_save = :param_1) THEN FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') ELSE locus_lines.updated_at END WHERE locus_lines.line = :of_line

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
--   ret_0: TwinVar as int
INSERT INTO locus_lines (tenant, thread_id, namespace, updated_at) VALUES (:tenant, :thread_id, :namespace, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) RETURNING locus_lines.line INTO :ret_0

-- execute
--   line: int as int
--   sequence: int as int
--   chain: int as int
--   parent: NULL as int
--   checkpoint_id: str
--   digest: bytes
--   metadata: NULL as DB_TYPE_JSON
--   labels: NULL as DB_TYPE_JSON
--   created_at: datetime as DB_TYPE_TIMESTAMP
--   payload: bytes as DB_TYPE_RAW
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, metadata, labels, created_at, payload) VALUES (:line, :sequence, :chain, :parent, :checkpoint_id, :digest, :metadata, :labels, FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), :payload)

-- execute
--   line: int as int
--   sequence: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.sequence = :sequence

-- execute
--   line: int as int
--   chain: int as int
--   upto: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.chain = :chain AND locus_checkpoints.sequence >= :chain AND locus_checkpoints.sequence <= :upto ORDER BY locus_checkpoints.sequence

-- execute
--   new_head: int as int
--   new_open_chain: int as int
--   new_open_bytes: int as int
--   new_floor: int as int
--   new_last_sequence: int as int
--   new_writer: NULL
--   new_run: NULL
--   is_save: int as int
--   param_1: int as int
--   of_line: int as int
UPDATE locus_lines SET head=:new_head, open_chain=:new_open_chain, open_bytes=:new_open_bytes, floor=:new_floor, last_sequence=:new_last_sequence, writer=:new_writer, run=:new_run, updated_at=CASE WHEN (:is_save = :param_1) THEN FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') ELSE locus_lines.updated_at END WHERE locus_lines.line = :of_line

-- execute
--   updated_at: datetime as DB_TYPE_TIMESTAMP
--   tenant_1: str
--   thread_id_1: str
UPDATE locus_lines SET updated_at=FROM_TZ(CAST(:updated_at AS TIMESTAMP), '+00:00') WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1

-- commit
