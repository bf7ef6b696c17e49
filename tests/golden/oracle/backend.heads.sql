1 calls of the driver

-- execute, commits
--   namespace_1: str
--   namespace_2: str
--   tenant_1: str
--   namespace_3: str
SELECT page.thread_id, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at
FROM (SELECT locus_threads.thread_id AS thread_id, locus_threads.active_at AS active_at, locus_threads.thread AS thread, (SELECT locus_lines.line
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_1 AND locus_lines.head IS NOT NULL) AS line, (SELECT locus_lines.head
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_2 AND locus_lines.head IS NOT NULL) AS head
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (SELECT locus_lines.line
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_3 AND locus_lines.head IS NOT NULL) IS NOT NULL ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST 100 ROWS ONLY) page JOIN locus_checkpoints ON locus_checkpoints.line = page.line AND locus_checkpoints.sequence = page.head ORDER BY page.active_at DESC, page.thread DESC
