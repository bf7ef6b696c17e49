-- tenant_1: str
SELECT locus_lines.thread_id, locus_lines.namespace, locus_lines.last_sequence
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.head IS NOT NULL ORDER BY locus_lines.last_sequence DESC, locus_lines.line
 FETCH FIRST 3 ROWS ONLY
