-- tenant_1: str
-- thread_id_1: str
-- namespace_1: str
-- checkpoint_id_1_1: str
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_lines JOIN locus_writes ON locus_writes.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_lines.thread_id = :thread_id_1 AND locus_lines.namespace = :namespace_1 AND locus_writes.checkpoint_id IN (:checkpoint_id_1_1)
