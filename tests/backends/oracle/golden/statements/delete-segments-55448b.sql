-- tenant: str
-- thread_0: str
DELETE FROM locus_segments WHERE locus_segments.line IN (SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id IN (:thread_0))
