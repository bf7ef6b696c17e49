-- tenant_1: str
-- param_1: str
SELECT locus_lines.thread_id, locus_lines.namespace, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id
WHERE locus_lines.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND JSON_EXISTS(locus_checkpoints.metadata, '$."run_id"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v")
