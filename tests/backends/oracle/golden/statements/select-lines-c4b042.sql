-- of_tenant: str
-- of_thread_id: str
SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :of_tenant AND locus_lines.thread_id = :of_thread_id AND locus_lines.head IS NOT NULL FOR UPDATE SKIP LOCKED
