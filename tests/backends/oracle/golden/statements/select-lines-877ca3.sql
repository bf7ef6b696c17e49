-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence, locus_lines.writer, locus_lines.run
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace FOR UPDATE NOWAIT
