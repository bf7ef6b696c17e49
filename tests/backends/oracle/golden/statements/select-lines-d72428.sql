-- tenant_1: str
-- thread_id_1: str
SELECT locus_lines.line, locus_lines.tenant, locus_lines.thread_id, locus_lines.namespace, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run, locus_lines.updated_at
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
