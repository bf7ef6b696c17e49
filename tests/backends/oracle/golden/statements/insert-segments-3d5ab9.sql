-- tenant_1: str
-- thread_id_1: str
-- tenant_2: str
-- thread_id_2: str
INSERT INTO locus_segments (line, last, first, chain, payload) SELECT new_lines.line, locus_segments.last, locus_segments.first, locus_segments.chain, locus_segments.payload
FROM locus_lines old_lines JOIN locus_lines new_lines ON new_lines.namespace = old_lines.namespace JOIN locus_segments ON locus_segments.line = old_lines.line
WHERE old_lines.tenant = :tenant_1 AND old_lines.thread_id = :thread_id_1 AND new_lines.tenant = :tenant_2 AND new_lines.thread_id = :thread_id_2
