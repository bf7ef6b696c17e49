-- coalesce_1: int as int
-- coalesce_2: int as int
-- tenant_1: str
-- namespace_1: str
-- param_1: str
-- contains_1: int as int
-- tenant: str
SELECT locus_lines.line, coalesce((SELECT sum(length(locus_checkpoints.payload)) AS sum_1
FROM locus_checkpoints
WHERE locus_checkpoints.line = locus_lines.line), :coalesce_1) + coalesce((SELECT sum(length(locus_segments.payload)) AS sum_2
FROM locus_segments
WHERE locus_segments.line = locus_lines.line), :coalesce_2) AS anon_1
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL AND locus_lines.line IN (SELECT locus_search.line
FROM locus_search
WHERE contains(locus_search.tokens, :param_1) > :contains_1) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL ORDER BY locus_lines.line DESC
