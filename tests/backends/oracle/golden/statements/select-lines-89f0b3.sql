-- namespace_1: str
-- tenant: str
-- limit: int
SELECT page.line, page.sequence, page.checkpoint_id, page.metadata, page.labels, page.created_at, (SELECT locus_lines.thread_id
FROM locus_lines
WHERE locus_lines.line = page.line AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL AND (page.sequence >= locus_lines.floor OR page.sequence = locus_lines.head) AND (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) IS NOT NULL) AS thread_id
FROM (SELECT locus_checkpoints.line AS line, locus_checkpoints.sequence AS sequence, locus_checkpoints.checkpoint_id AS checkpoint_id, locus_checkpoints.metadata AS metadata, locus_checkpoints.labels AS labels, locus_checkpoints.created_at AS created_at
FROM locus_checkpoints
WHERE JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@ == true)') OR JSON_EXISTS(locus_checkpoints.labels, '$."k"[*]?(@ == true)') ORDER BY locus_checkpoints.created_at DESC, locus_checkpoints.line DESC, locus_checkpoints.sequence DESC
 FETCH FIRST :limit ROWS ONLY) page ORDER BY page.created_at DESC, page.line DESC, page.sequence DESC
