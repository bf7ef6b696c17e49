48 calls of the driver

-- execute
ALTER SESSION SET TIME_ZONE = '+00:00' NLS_COMP = BINARY NLS_SORT = BINARY NLS_NUMERIC_CHARACTERS = '.,'

-- execute
ALTER SESSION SET TIME_ZONE = '+00:00' NLS_COMP = BINARY NLS_SORT = BINARY NLS_NUMERIC_CHARACTERS = '.,'

-- execute
CREATE TABLE IF NOT EXISTS locus_lock (held INTEGER)

-- execute
LOCK TABLE locus_lock IN EXCLUSIVE MODE

-- execute, commits
CREATE TABLE IF NOT EXISTS locus_search (line NUMBER(19) NOT NULL, sequence NUMBER(19) NOT NULL, tokens CLOB, CONSTRAINT locus_search_pk PRIMARY KEY (line, sequence))

-- execute, commits
--   owner: NULL
--   name: str
SELECT i.status, i.domidx_opstatus FROM all_indexes i
            WHERE i.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
            AND i.index_name = :name

-- execute, commits
CREATE INDEX IF NOT EXISTS locus_search_tokens ON locus_search (tokens) INDEXTYPE IS CTXSYS.CONTEXT PARAMETERS ('SYNC (ON COMMIT) STOPLIST CTXSYS.EMPTY_STOPLIST')

-- rollback

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

-- execute
LOCK TABLE locus_checkpoints IN EXCLUSIVE MODE

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   name_1: str
UPDATE locus_settings SET value=locus_settings.value WHERE locus_settings.name = :name_1

-- execute
DELETE FROM locus_search

-- execute
--   name: str
--   value: str
INSERT INTO locus_settings (name, value) VALUES (:name, :value)

-- execute
SELECT locus_lines.line
FROM locus_lines

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: NULL as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   text: str as DB_TYPE_NVARCHAR
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: str as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   text: str as DB_TYPE_NVARCHAR
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: str as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   text: str as DB_TYPE_NVARCHAR
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: str as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   text: str as DB_TYPE_NVARCHAR
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- execute
--   line_1: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_1 ORDER BY locus_checkpoints.sequence

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: NULL as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   text: str as DB_TYPE_NVARCHAR
--   line_1: int as int
--   sequence_1_1: int as int
UPDATE locus_checkpoints SET text=:text WHERE locus_checkpoints.line = :line_1 AND locus_checkpoints.sequence IN (:sequence_1_1)

-- commit

-- execute, commits
--   its_tenant: str as STRING
--   its_thread_id: str as STRING
--   its_store_id: str as STRING
--   its_namespace: str as STRING
--   its_writer: NULL as STRING
--   its_run: NULL as STRING
--   its_added: int as int
--   its_checkpoint_id: str as STRING
--   its_digest: bytes as BINARY
--   its_metadata: NULL as DB_TYPE_JSON
--   its_labels: NULL as DB_TYPE_JSON
--   its_payload: bytes as DB_TYPE_RAW
--   won: TwinVar
--   made_line: TwinVar
--   made_sequence: TwinVar
DECLARE
  refused EXCEPTION;
  p_payload BLOB := :its_payload;
  p_line NUMBER;
  p_sequence NUMBER;
BEGIN
  LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE;
  INSERT INTO locus_threads (tenant, thread_id, created_at, active_at) SELECT :its_tenant AS anon_1, :its_thread_id AS anon_2, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1, FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') AS minute_1  FROM locus_settings  WHERE locus_settings.name = 'store_id' AND locus_settings.value = :its_store_id AND NOT (EXISTS (SELECT *  FROM locus_settings facts  WHERE facts.name = 'full_text_index')) AND NOT (EXISTS (SELECT *  FROM locus_threads  WHERE locus_threads.tenant = :its_tenant AND locus_threads.thread_id = :its_thread_id));
  IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;
  INSERT INTO locus_lines (tenant, thread_id, namespace, writer, run, head, open_chain, last_sequence, open_bytes, floor, updated_at) SELECT :its_tenant AS anon_1, :its_thread_id AS anon_2, :its_namespace AS anon_3, :its_writer AS anon_4, :its_run AS anon_5, 1, 1, 1, :its_added AS anon_6, 0, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1  FROM locus_threads  WHERE locus_threads.tenant = :its_tenant AND locus_threads.thread_id = :its_thread_id;
  IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;
  INSERT INTO locus_checkpoints (line, sequence, chain, checkpoint_id, digest, codec, created_at, metadata, labels, payload) SELECT locus_lines.line, 1, 1, :its_checkpoint_id AS anon_1, :its_digest AS anon_2, 0, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1, :its_metadata AS anon_3, :its_labels AS anon_4, p_payload AS anon_5  FROM locus_lines  WHERE locus_lines.tenant = :its_tenant AND locus_lines.thread_id = :its_thread_id AND locus_lines.namespace = :its_namespace;
  IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;
  SELECT locus_lines.line, locus_lines.head  INTO p_line, p_sequence FROM locus_lines  WHERE locus_lines.tenant = :its_tenant AND locus_lines.thread_id = :its_thread_id AND locus_lines.namespace = :its_namespace;
  COMMIT;
  :won := 1;
  :made_line := p_line;
  :made_sequence := p_sequence;
EXCEPTION
  WHEN refused THEN
    ROLLBACK;
    :won := 0;
    :made_line := 0;
    :made_sequence := 0;
  WHEN OTHERS THEN
    ROLLBACK;
    RAISE;
END;

-- execute
LOCK TABLE locus_checkpoints IN ROW EXCLUSIVE MODE

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
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND locus_lines.head IS NOT NULL FOR UPDATE

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
--   tenant_1: str
--   thread_id_1: str
--   namespace_1: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 AND locus_lines.namespace = :namespace_1 FOR UPDATE NOWAIT

-- execute
--   tenant: str
--   thread_id: str
--   namespace: str
--   ret_0: TwinVar as int
INSERT INTO locus_lines (tenant, thread_id, namespace, updated_at) VALUES (:tenant, :thread_id, :namespace, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) RETURNING locus_lines.line INTO :ret_0

-- execute
--   line: int as int
--   sequence: int as int
--   tokens: str as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)

-- execute
--   line: int as int
--   sequence: int as int
--   chain: int as int
--   parent: NULL as int
--   checkpoint_id: str
--   digest: bytes
--   codec: int as int
--   metadata: NULL as DB_TYPE_JSON
--   labels: NULL as DB_TYPE_JSON
--   text: str as DB_TYPE_NVARCHAR
--   payload: bytes as DB_TYPE_RAW
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata, labels, created_at, text, payload) VALUES (:line, :sequence, :chain, :parent, :checkpoint_id, :digest, :codec, :metadata, :labels, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'), :text, :payload)

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

-- commit

-- execute, commits
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute, commits
--   param_1: str
--   contains_1: int as int
SELECT locus_search.line
FROM locus_search
WHERE contains(locus_search.tokens, :param_1) > :contains_1

-- execute, commits
--   tenant_1: str
--   tenant_2: str
--   namespace_1: str
--   line_1_1: int as int
--   line_1_2: int as int
--   line_1_3: int as int
--   line_1_4: int as int
SELECT locus_lines.line, (SELECT sum(length(locus_checkpoints.payload)) AS sum_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = locus_lines.line) AS anon_1
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant_2 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL AND locus_lines.line IN (:line_1_1, :line_1_2, :line_1_3, :line_1_4) ORDER BY locus_lines.line DESC

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
--   param_1_2_1: int as int
--   param_1_2_2: int as int
SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata, locus_checkpoints.created_at
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE (locus_checkpoints.line, locus_checkpoints.sequence) IN ((:param_1_1_1, :param_1_1_2), (:param_1_2_1, :param_1_2_2)) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL
