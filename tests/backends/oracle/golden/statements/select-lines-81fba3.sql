-- tenant_1: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (NULL) AND (1 != 1) ORDER BY locus_lines.thread_id, locus_lines.namespace FOR UPDATE
