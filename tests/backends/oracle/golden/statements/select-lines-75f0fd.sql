-- checkpoint_id: str
-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id, locus_checkpoints.chain, locus_checkpoints.parent, locus_lines.head, heads.digest AS head_digest
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.checkpoint_id = :checkpoint_id AND (locus_checkpoints.sequence >= locus_lines.floor OR locus_checkpoints.sequence = locus_lines.head) JOIN locus_checkpoints heads ON heads.line = locus_lines.line AND heads.sequence = locus_lines.head LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))
