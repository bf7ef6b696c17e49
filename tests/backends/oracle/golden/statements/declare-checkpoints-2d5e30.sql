-- its_line: int as int
-- its_tenant: str as STRING
-- its_thread_id: str as STRING
-- its_namespace: str as STRING
-- its_store_id: str as STRING
-- its_basis: int as int
-- its_checkpoint_id: str as STRING
-- its_digest: bytes as BINARY
-- its_metadata: NULL as DB_TYPE_JSON
-- its_labels: NULL as DB_TYPE_JSON
-- its_payload: bytes as DB_TYPE_RAW
-- its_is_free: int as int
-- its_writer: NULL as STRING
-- its_run: NULL as STRING
-- its_expected: NULL as int
-- its_expected_digest: NULL as BINARY
-- its_most: int as int
-- its_basis_digest: bytes as BINARY
-- its_added: int as int
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
  UPDATE locus_lines SET updated_at=FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') WHERE locus_lines.line = :its_line AND locus_lines.tenant = :its_tenant AND locus_lines.thread_id = :its_thread_id AND locus_lines.namespace = :its_namespace AND locus_lines.head IS NOT NULL AND (EXISTS (SELECT *  FROM locus_threads  WHERE locus_threads.tenant = :its_tenant AND locus_threads.thread_id = :its_thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')))) AND (EXISTS (SELECT *  FROM locus_settings  WHERE locus_settings.name = 'store_id' AND locus_settings.value = :its_store_id)) AND NOT (EXISTS (SELECT *  FROM locus_settings facts  WHERE facts.name = 'full_text_index'));
  IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;
  INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, codec, created_at, metadata, labels, payload) SELECT locus_lines.line, locus_lines.last_sequence + 1 AS anon_1, CASE WHEN (:its_basis IS NULL) THEN locus_lines.last_sequence + 1 ELSE locus_lines.open_chain END AS anon_2, locus_lines.head, :its_checkpoint_id AS anon_3, :its_digest AS anon_4, 0, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1, :its_metadata AS anon_5, :its_labels AS anon_6, p_payload AS anon_7  FROM locus_lines  WHERE locus_lines.line = :its_line AND (:its_is_free = 1 OR locus_lines.writer = :its_writer OR :its_writer IS NULL AND locus_lines.run = :its_run OR locus_lines.head = :its_expected AND (EXISTS (SELECT *  FROM locus_checkpoints expected_head  WHERE expected_head.line = locus_lines.line AND expected_head.sequence = :its_expected AND expected_head.digest = :its_expected_digest))) AND (:its_basis IS NULL OR locus_lines.open_chain IS NOT NULL AND locus_lines.open_bytes <= :its_most AND locus_lines.head = :its_basis AND (EXISTS (SELECT *  FROM locus_checkpoints basis_head  WHERE basis_head.line = locus_lines.line AND basis_head.sequence = :its_basis AND basis_head.digest = :its_basis_digest))) AND NOT (EXISTS (SELECT *  FROM locus_checkpoints others  WHERE others.line = locus_lines.line AND others.checkpoint_id = :its_checkpoint_id));
  IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;
  UPDATE locus_lines SET head=(locus_lines.last_sequence + 1), open_chain=CASE WHEN (:its_basis IS NULL) THEN locus_lines.last_sequence + 1 ELSE locus_lines.open_chain END, open_bytes=(CASE WHEN (:its_basis IS NULL) THEN 0 ELSE locus_lines.open_bytes END + :its_added), last_sequence=(locus_lines.last_sequence + 1), writer=:its_writer, run=:its_run, updated_at=FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') WHERE locus_lines.line = :its_line;
  UPDATE locus_threads SET active_at=FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00') WHERE locus_threads.tenant = :its_tenant AND locus_threads.thread_id = :its_thread_id AND locus_threads.active_at != FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00');
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
