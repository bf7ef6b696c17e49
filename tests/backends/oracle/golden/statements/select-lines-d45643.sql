-- tenant_1: str
-- thread_id_1: str
-- namespace_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 AND locus_lines.namespace = :namespace_1
