-- tenant_1: str
-- thread_id_1: str
SELECT locus_lines.namespace
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
