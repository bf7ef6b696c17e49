-- length_1: int as int
-- namespace_1: str
-- tenant_1: str
-- thread_id_1_1: str
-- thread_id_1_2: str
SELECT locus_threads.thread_id, locus_lines.head, locus_checkpoints.metadata, locus_threads.user_id, locus_threads.expires_at, CASE WHEN (length(locus_checkpoints.payload) <= :length_1) THEN locus_checkpoints.payload END AS anon_1, locus_turns.turn
FROM locus_threads LEFT OUTER JOIN locus_lines ON locus_lines.tenant = locus_threads.tenant AND locus_lines.thread_id = locus_threads.thread_id AND locus_lines.namespace = :namespace_1 LEFT OUTER JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head LEFT OUTER JOIN locus_turns ON locus_turns.tenant = locus_threads.tenant AND locus_turns.thread_id = locus_threads.thread_id AND locus_turns.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1, :thread_id_1_2)
