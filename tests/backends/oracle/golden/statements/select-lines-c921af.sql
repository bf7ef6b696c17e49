-- param_1: str
-- tenant: str
-- limit: int as int
SELECT (SELECT locus_lines.thread_id
FROM locus_lines
WHERE locus_lines.line = page.line) AS thread_id, (SELECT locus_lines.namespace
FROM locus_lines
WHERE locus_lines.line = page.line) AS namespace, page.line, page.sequence, page.checkpoint_id, page.digest, page.metadata, page.labels, page.created_at, (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = page.line AND locus_checkpoints.sequence = page.parent) AS parent_id
FROM (SELECT locus_checkpoints.line AS line, locus_checkpoints.sequence AS sequence, locus_checkpoints.checkpoint_id AS checkpoint_id, locus_checkpoints.digest AS digest, locus_checkpoints.metadata AS metadata, locus_checkpoints.labels AS labels, locus_checkpoints.created_at AS created_at, locus_checkpoints.parent AS parent
FROM locus_checkpoints
WHERE JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_1 AS "v") AND (SELECT locus_lines.line
FROM locus_lines
WHERE locus_lines.line = locus_checkpoints.line AND locus_lines.head IS NOT NULL AND (locus_checkpoints.sequence >= locus_lines.floor OR locus_checkpoints.sequence = locus_lines.head) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL) IS NOT NULL ORDER BY locus_checkpoints.created_at DESC, locus_checkpoints.line DESC, locus_checkpoints.sequence DESC
 FETCH FIRST :limit ROWS ONLY) page ORDER BY page.created_at DESC, page.line DESC, page.sequence DESC
