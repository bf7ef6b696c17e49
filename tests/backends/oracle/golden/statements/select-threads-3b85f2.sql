-- tenant_1: str
-- param_1: int as int
-- coalesce_1: int as int
-- coalesce_2: int as int
-- coalesce_3: int as int
-- tenant_2: str
-- param_2: int as int
-- coalesce_4: int as int
-- param_3: int as int
-- coalesce_5: int as int
-- param_4: int as int
-- coalesce_6: int as int
-- coalesce_7: int as int
-- coalesce_8: int as int
-- param_5: int as int
-- coalesce_9: int as int
-- coalesce_10: int as int
-- tenant_3: str
SELECT (SELECT count(*) AS count_1
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND coalesce((SELECT max(locus_lines.updated_at) AS max_1
FROM locus_lines
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.head IS NOT NULL), (SELECT max(locus_logs.changed_at) AS max_2
FROM locus_logs
WHERE locus_logs.thread = locus_threads.thread), CASE WHEN (locus_threads.name IS NOT NULL OR locus_threads.user_id IS NOT NULL) THEN locus_threads.active_at END) IS NOT NULL) AS anon_1, (SELECT sum(:param_1 + coalesce(length(locus_checkpoints.payload), :coalesce_1) + coalesce(length(json_serialize(locus_checkpoints.metadata RETURNING CLOB)), :coalesce_2) + coalesce(length(json_serialize(locus_checkpoints.labels RETURNING CLOB)), :coalesce_3)) AS sum_1
FROM locus_checkpoints JOIN locus_lines ON locus_lines.line = locus_checkpoints.line
WHERE locus_lines.tenant = :tenant_2) AS anon_2, (SELECT sum(:param_2 + coalesce(length(locus_segments.payload), :coalesce_4)) AS sum_2
FROM locus_segments JOIN locus_lines ON locus_lines.line = locus_segments.line
WHERE locus_lines.tenant = :tenant_2) AS anon_3, (SELECT sum(:param_3 + coalesce(length(locus_writes.payload), :coalesce_5)) AS sum_3
FROM locus_writes JOIN locus_lines ON locus_lines.line = locus_writes.line
WHERE locus_lines.tenant = :tenant_2) AS anon_4, (SELECT sum(:param_4 + coalesce(length(locus_messages.payload), :coalesce_6) + coalesce(length(json_serialize(locus_messages.metadata RETURNING CLOB)), :coalesce_7) + coalesce(length(locus_messages.text), :coalesce_8)) AS sum_4
FROM locus_messages JOIN locus_threads ON locus_threads.thread = locus_messages.thread
WHERE locus_threads.tenant = :tenant_1) AS anon_5, (SELECT sum(:param_5 + coalesce(length(json_serialize(locus_store.value RETURNING CLOB)), :coalesce_9) + coalesce(length(json_serialize(locus_store.metadata RETURNING CLOB)), :coalesce_10)) AS sum_5
FROM locus_store
WHERE locus_store.tenant = :tenant_3) AS anon_6 FROM DUAL
