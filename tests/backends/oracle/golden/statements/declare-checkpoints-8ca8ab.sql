-- its_tenant: str as STRING
-- its_thread_id: str as STRING
-- its_store_id: str as STRING
-- its_namespace: str as STRING
-- its_writer: NULL as STRING
-- its_run: NULL as STRING
-- its_added: int as int
-- its_checkpoint_id: str as STRING
-- its_digest: bytes as BINARY
-- its_metadata: NULL as DB_TYPE_JSON
-- its_labels: NULL as DB_TYPE_JSON
-- its_payload: bytes as DB_TYPE_RAW
-- won: TwinVar
-- made_line: TwinVar
-- made_sequence: TwinVar
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
