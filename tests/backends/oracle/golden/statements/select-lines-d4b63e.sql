-- param_1: int as int
-- param_2: int as int
-- checkpoint_id: str
-- param_3: int as int
-- param_4: int as int
-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, CASE WHEN (locus_threads.active_at = FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_active, (SELECT locus_turns.turn
FROM locus_turns
WHERE locus_turns.tenant = locus_lines.tenant AND locus_turns.thread_id = locus_lines.thread_id AND locus_turns.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AS anon_1, CASE WHEN (EXISTS (SELECT *
FROM locus_writes
WHERE locus_writes.line = locus_lines.line AND locus_writes.checkpoint_id = :checkpoint_id)) THEN :param_3 ELSE :param_4 END AS anon_2, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id LEFT OUTER JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.checkpoint_id = :checkpoint_id
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
