-- others: int as int
-- coalesce_1: int as int
-- limit: int as int
-- tenant: str
-- lines: int as int
WITH active AS
(SELECT locus_threads.active_at AS active_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (EXISTS (SELECT *
FROM locus_lines
WHERE locus_lines.tenant = coalesce(locus_threads.tenant, locus_threads.thread_id) AND locus_lines.thread_id = locus_threads.thread_id AND locus_lines.head IS NOT NULL)) ORDER BY locus_threads.active_at DESC, locus_threads.thread DESC
 FETCH FIRST :limit ROWS ONLY),
near AS
(SELECT locus_lines.line AS line, locus_lines.thread_id AS thread_id, locus_lines.namespace AS namespace, locus_lines.head AS head, locus_lines.floor AS floor, locus_lines.updated_at AS updated_at, (SELECT CASE WHEN (count(*) >= :limit) THEN min(active.active_at) END AS anon_1
FROM active) AS minute
FROM locus_threads JOIN locus_lines ON locus_lines.tenant = coalesce(locus_threads.tenant, locus_threads.thread_id) AND locus_lines.thread_id = locus_threads.thread_id
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.active_at >= (SELECT min(active.active_at) AS min_1
FROM active) AND locus_lines.head IS NOT NULL),
its AS
(SELECT near.line AS line, near.thread_id AS thread_id, near.namespace AS namespace, near.head AS head, near.floor AS floor, near.minute AS minute, coalesce((SELECT others.sequence
FROM locus_checkpoints others
WHERE others.line = near.line ORDER BY others.sequence DESC
 OFFSET :others ROWS
 FETCH FIRST 1 ROWS ONLY), :coalesce_1) AS first, (SELECT max(near.updated_at) AS max_1
FROM near
WHERE near.updated_at < (SELECT near.updated_at
FROM near ORDER BY near.updated_at DESC
 OFFSET :lines ROWS
 FETCH FIRST 1 ROWS ONLY)) AS older
FROM near
WHERE near.updated_at >= coalesce((SELECT near.updated_at
FROM near ORDER BY near.updated_at DESC
 OFFSET :lines ROWS
 FETCH FIRST 1 ROWS ONLY), near.updated_at))
 SELECT page.thread_id AS thread_id, page.namespace AS namespace, page.line, page.sequence, page.checkpoint_id, page.digest, page.metadata, page.labels, page.created_at, (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = page.line AND locus_checkpoints.sequence = page.parent) AS parent_id, page.older, page.minute
FROM (SELECT locus_checkpoints.line AS line, locus_checkpoints.sequence AS sequence, locus_checkpoints.checkpoint_id AS checkpoint_id, locus_checkpoints.digest AS digest, locus_checkpoints.metadata AS metadata, locus_checkpoints.labels AS labels, locus_checkpoints.created_at AS created_at, locus_checkpoints.parent AS parent, its.thread_id AS thread_id, its.namespace AS namespace, its.older AS older, its.minute AS minute
FROM locus_checkpoints, its
WHERE locus_checkpoints.line = its.line AND (locus_checkpoints.sequence >= its.first AND locus_checkpoints.sequence >= its.floor OR locus_checkpoints.sequence = its.head) ORDER BY locus_checkpoints.created_at DESC, locus_checkpoints.line DESC, locus_checkpoints.sequence DESC
 FETCH FIRST :limit ROWS ONLY) page ORDER BY page.created_at DESC, page.line DESC, page.sequence DESC
