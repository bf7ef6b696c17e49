-- tenant_1: str
-- namespace_1: str
-- channel_1: str
-- thread_id_1_1: str
-- thread_id_1_2: str
SELECT locus_lines.thread_id
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head JOIN locus_writes ON locus_writes.line = locus_checkpoints.line AND locus_writes.checkpoint_id = locus_checkpoints.checkpoint_id
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (:thread_id_1_1, :thread_id_1_2) AND locus_lines.namespace = :namespace_1 AND locus_writes.channel = :channel_1
