-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND locus_lines.head IS NOT NULL FOR UPDATE
