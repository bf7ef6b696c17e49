-- tenant_1: str
-- thread_id_1: str
-- tenant_2: str
-- thread_id_2: str
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, type, task_path, basis, created_at, payload) SELECT new_lines.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.created_at, locus_writes.payload
FROM locus_lines old_lines JOIN locus_lines new_lines ON new_lines.namespace = old_lines.namespace JOIN locus_writes ON locus_writes.line = old_lines.line
WHERE old_lines.tenant = :tenant_1 AND old_lines.thread_id = :thread_id_1 AND new_lines.tenant = :tenant_2 AND new_lines.thread_id = :thread_id_2
