-- tenant_1: str
-- floor_1: int as int
SELECT count(*) AS count_1
FROM (SELECT locus_checkpoints.sequence AS sequence
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.floor > :floor_1 AND locus_checkpoints.sequence < locus_lines.floor AND locus_checkpoints.sequence != locus_lines.head) anon_1
