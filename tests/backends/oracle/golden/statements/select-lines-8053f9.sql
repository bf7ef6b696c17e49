-- param_1: int as int
-- param_2: int as int
-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, CASE WHEN (locus_threads.active_at = FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS is_active, (SELECT locus_turns.turn
FROM locus_turns
WHERE locus_turns.tenant = locus_lines.tenant AND locus_turns.thread_id = locus_lines.thread_id AND locus_turns.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AS anon_1
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
