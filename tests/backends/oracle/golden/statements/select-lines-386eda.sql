-- tenant_1: str
-- thread_id_1: str
SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
