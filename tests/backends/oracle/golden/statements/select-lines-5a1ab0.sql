-- tenant: str
-- thread_0: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id IN (:thread_0)
