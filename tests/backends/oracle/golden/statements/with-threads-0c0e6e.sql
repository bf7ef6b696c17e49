-- tenant: str
-- user_id_1: str
-- limit: int as int
WITH minutes AS
(SELECT locus_threads.active_at AS active_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.user_id = :user_id_1 AND coalesce((SELECT max(locus_lines.updated_at) AS max_3
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT max(locus_logs.changed_at) AS max_4
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST :limit ROWS ONLY),
near AS
(SELECT locus_threads.thread_id AS thread_id, locus_threads.active_at AS active_at, locus_threads.thread AS thread, coalesce(CASE WHEN ((SELECT max(locus_logs.changed_at) AS max_1
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread) IS NULL) THEN (SELECT max(locus_lines.updated_at) AS max_2
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) WHEN ((SELECT max(locus_lines.updated_at) AS max_2
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) > (SELECT max(locus_logs.changed_at) AS max_1
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread)) THEN (SELECT max(locus_lines.updated_at) AS max_2
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL) ELSE (SELECT max(locus_logs.changed_at) AS max_1
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread) END, CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) AS exact
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.user_id = :user_id_1 AND locus_threads.active_at BETWEEN (SELECT min(minutes.active_at) AS min_1
FROM minutes) AND (SELECT max(minutes.active_at) AS max_5
FROM minutes))
 SELECT page.thread_id, page.active_at, page.thread, page.exact, locus_threads.created_at, locus_threads.user_id, locus_threads.name, locus_threads.metadata
FROM (SELECT near.thread_id AS thread_id, near.active_at AS active_at, near.thread AS thread, near.exact AS exact
FROM near
WHERE near.exact IS NOT NULL ORDER BY near.active_at DESC, near.exact DESC, near.thread DESC
 FETCH FIRST :limit ROWS ONLY) page JOIN locus_threads ON locus_threads.thread = page.thread ORDER BY page.active_at DESC, page.exact DESC, page.thread DESC
