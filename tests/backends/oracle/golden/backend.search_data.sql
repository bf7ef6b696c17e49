5 calls of the driver

-- execute, commits
--   tenant_1: str
WITH minutes AS
(SELECT locus_threads.active_at AS active_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST 100 ROWS ONLY),
near AS
(SELECT locus_threads.thread_id AS thread_id, locus_threads.active_at AS active_at, locus_threads.thread AS thread, coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) AS exact
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.active_at BETWEEN (SELECT min(minutes.active_at) AS min_1
FROM minutes) AND (SELECT max(minutes.active_at) AS max_2
FROM minutes))
 SELECT near.thread_id, near.active_at, near.thread, near.exact
FROM near
WHERE near.exact IS NOT NULL ORDER BY near.active_at DESC, near.exact DESC, near.thread DESC
 FETCH FIRST 100 ROWS ONLY

-- execute, commits
--   known_line: int as int
--   known_sequence: int as int
--   known_digest: bytes
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line, locus_lines.head, heads.digest AS head_digest, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id, records.payload
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head JOIN locus_checkpoints heads ON heads.line = locus_lines.line AND heads.sequence = locus_lines.head LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent LEFT OUTER JOIN locus_checkpoints records ON records.line = locus_checkpoints.line AND records.chain = locus_checkpoints.chain AND records.sequence BETWEEN locus_checkpoints.chain AND locus_checkpoints.sequence AND NOT (locus_checkpoints.line = :known_line AND locus_checkpoints.sequence = :known_sequence AND locus_checkpoints.digest = :known_digest)
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) ORDER BY records.sequence

-- execute, commits
--   known_line: int as int
--   known_sequence: int as int
--   known_digest: bytes
--   tenant: str
--   thread_id: str
--   namespace: str
SELECT locus_lines.line, locus_lines.head, heads.digest AS head_digest, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id, records.payload
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head JOIN locus_checkpoints heads ON heads.line = locus_lines.line AND heads.sequence = locus_lines.head LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent LEFT OUTER JOIN locus_checkpoints records ON records.line = locus_checkpoints.line AND records.chain = locus_checkpoints.chain AND records.sequence BETWEEN locus_checkpoints.chain AND locus_checkpoints.sequence AND NOT (locus_checkpoints.line = :known_line AND locus_checkpoints.sequence = :known_sequence AND locus_checkpoints.digest = :known_digest)
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) ORDER BY records.sequence

-- execute, commits
--   tenant_1: str
--   thread_id_1: str
SELECT locus_threads.active_at, coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) AS exact, locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1

-- execute, commits
--   tenant_1: str
--   active_at_1: datetime as DB_TYPE_TIMESTAMP
--   param_3: datetime as DB_TYPE_TIMESTAMP
--   active_at_2: datetime as DB_TYPE_TIMESTAMP
--   exact_1: datetime as DB_TYPE_TIMESTAMP
--   exact_2: datetime as DB_TYPE_TIMESTAMP
--   thread_1: int as int
WITH minutes AS
(SELECT locus_threads.active_at AS active_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL AND locus_threads.active_at < FROM_TZ(CAST(:active_at_1 AS TIMESTAMP), '+00:00') ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST 100 ROWS ONLY),
near AS
(SELECT locus_threads.thread_id AS thread_id, locus_threads.active_at AS active_at, locus_threads.thread AS thread, coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT locus_messages.created_at
FROM locus_messages
WHERE locus_messages.thread = locus_threads.thread ORDER BY locus_messages.sequence DESC
 FETCH FIRST 1 ROWS ONLY), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) AS exact
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.active_at BETWEEN coalesce((SELECT min(minutes.active_at) AS min_1
FROM minutes), FROM_TZ(CAST(:param_3 AS TIMESTAMP), '+00:00')) AND FROM_TZ(CAST(:param_3 AS TIMESTAMP), '+00:00'))
 SELECT near.thread_id, near.active_at, near.thread, near.exact
FROM near
WHERE near.exact IS NOT NULL AND (near.active_at < FROM_TZ(CAST(:active_at_2 AS TIMESTAMP), '+00:00') OR near.exact < FROM_TZ(CAST(:exact_1 AS TIMESTAMP), '+00:00') OR near.exact = FROM_TZ(CAST(:exact_2 AS TIMESTAMP), '+00:00') AND near.thread < :thread_1) ORDER BY near.active_at DESC, near.exact DESC, near.thread DESC
 FETCH FIRST 100 ROWS ONLY
