-- tenant_1: str
-- thread_id_1: str
-- tenant_2: str
-- thread_id_2: str
INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, codec, metadata, labels, created_at, text, payload) SELECT new_lines.line, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.codec, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, locus_checkpoints.text, locus_checkpoints.payload
FROM locus_lines old_lines JOIN locus_lines new_lines ON new_lines.namespace = old_lines.namespace JOIN locus_checkpoints ON locus_checkpoints.line = old_lines.line
WHERE old_lines.tenant = :tenant_1 AND old_lines.thread_id = :thread_id_1 AND new_lines.tenant = :tenant_2 AND new_lines.thread_id = :thread_id_2
