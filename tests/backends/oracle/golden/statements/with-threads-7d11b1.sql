-- length_1: int as int
-- tenant_1: str
-- channel_1: str
-- param_1: int as int
-- param_2: int as int
-- param_3: int as int
-- param_4: int as int
-- expires_at_1: datetime as DB_TYPE_TIMESTAMP
-- param_5: int as int
-- param_6: int as int
-- param_7: str
-- param_8: int as int
-- param_9: int as int
-- coalesce_1: int as int
-- coalesce_2: int as int
-- tenant: str
-- param_10: str
-- user_id_1: str
-- param_11: str
-- namespace_1: str
-- param_12: str
-- param_13: str
-- param_14: Decimal
-- param_15: str
-- namespace_2: str
-- param_16: Decimal
-- param_17: str
-- param_18: Decimal
-- param_19: str
-- namespace_3: str
-- param_20: str
-- param_21: str
-- param_22: str
-- param_23: str
-- namespace_4: str
-- param_24: str
-- active_at_1: datetime as DB_TYPE_TIMESTAMP
-- active_at_2: datetime as DB_TYPE_TIMESTAMP
-- limit: int as int
-- namespace_5: str
-- nth_1: int as int
-- coalesce_3: int as int
-- coalesce_4: int as int
-- param_25: int as int
WITH minutes AS
(SELECT locus_threads.active_at AS active_at
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.thread_id LIKE :param_10 ESCAPE '\' AND (locus_threads.user_id = :user_id_1 OR JSON_EXISTS(locus_threads.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_11 AS "v") OR (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_1 AND (JSON_EXISTS(locus_checkpoints.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_12 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_13 AS "v"))))) AND (JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_14 AS "v") OR JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_15 AS "v") OR (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_2 AND (JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_16 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_17 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_18 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_19 AS "v"))))) AND (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_3 AND (locus_checkpoints.metadata IS NULL OR NOT (JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_20 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_21 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_22 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_23 AS "v"))))) AND (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_4 AND (EXISTS (SELECT *
FROM locus_checkpoints side
WHERE side.line = locus_lines.line AND side.sequence >= locus_lines.floor AND side.sequence != locus_lines.head AND JSON_EXISTS(side.labels, '$."side_branch"[*]?(@.stringOnly() == $v)' PASSING :param_24 AS "v") AND NOT (EXISTS (SELECT *
FROM locus_checkpoints child
WHERE child.line = side.line AND child.sequence > side.sequence AND child.parent = side.sequence)))))) AND locus_threads.active_at >= FROM_TZ(CAST(:active_at_1 AS TIMESTAMP), '+00:00') AND locus_threads.active_at <= FROM_TZ(CAST(:active_at_2 AS TIMESTAMP), '+00:00') AND coalesce((SELECT max(locus_lines.updated_at) AS max_3
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
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.thread_id LIKE :param_10 ESCAPE '\' AND (locus_threads.user_id = :user_id_1 OR JSON_EXISTS(locus_threads.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_11 AS "v") OR (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_1 AND (JSON_EXISTS(locus_checkpoints.metadata, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_12 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."user_id"[*]?(@.stringOnly() == $v)' PASSING :param_13 AS "v"))))) AND (JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_14 AS "v") OR JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_15 AS "v") OR (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_2 AND (JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_16 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_17 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_18 AS "v") OR JSON_EXISTS(locus_checkpoints.labels, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_19 AS "v"))))) AND (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_3 AND (locus_checkpoints.metadata IS NULL OR NOT (JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_20 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_21 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_22 AS "v") OR JSON_EXISTS(locus_checkpoints.metadata, '$."source"[*]?(@.stringOnly() == $v)' PASSING :param_23 AS "v"))))) AND (EXISTS (SELECT *
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id AND locus_lines.namespace = :namespace_4 AND (EXISTS (SELECT *
FROM locus_checkpoints side
WHERE side.line = locus_lines.line AND side.sequence >= locus_lines.floor AND side.sequence != locus_lines.head AND JSON_EXISTS(side.labels, '$."side_branch"[*]?(@.stringOnly() == $v)' PASSING :param_24 AS "v") AND NOT (EXISTS (SELECT *
FROM locus_checkpoints child
WHERE child.line = side.line AND child.sequence > side.sequence AND child.parent = side.sequence)))))) AND locus_threads.active_at >= FROM_TZ(CAST(:active_at_1 AS TIMESTAMP), '+00:00') AND locus_threads.active_at <= FROM_TZ(CAST(:active_at_2 AS TIMESTAMP), '+00:00') AND locus_threads.active_at BETWEEN (SELECT min(minutes.active_at) AS min_1
FROM minutes) AND (SELECT max(minutes.active_at) AS max_5
FROM minutes)),
page AS
(SELECT near.thread_id AS thread_id, near.active_at AS active_at, near.thread AS thread, near.exact AS exact
FROM near
WHERE near.exact IS NOT NULL ORDER BY near.active_at DESC, near.exact DESC, near.thread DESC
 FETCH FIRST :limit ROWS ONLY)
 SELECT page.thread_id, page.active_at, page.thread, page.exact, locus_lines.head, locus_checkpoints.checkpoint_id, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.digest, CASE WHEN (length(locus_checkpoints.payload) <= :length_1) THEN locus_checkpoints.payload END AS record, locus_threads.metadata AS facts, locus_threads.user_id, locus_threads.expires_at, counts.versions, counts.own, (SELECT sum(length(locus_segments.payload)) AS sum_1
FROM locus_segments JOIN locus_lines ON locus_lines.line = locus_segments.line
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = page.thread_id) AS joined, CASE WHEN (EXISTS (SELECT *
FROM locus_writes
WHERE locus_writes.line = locus_checkpoints.line AND locus_writes.checkpoint_id = locus_checkpoints.checkpoint_id AND locus_writes.channel = :channel_1)) THEN :param_1 ELSE :param_2 END AS interrupted, CASE WHEN (EXISTS (SELECT *
FROM locus_turns
WHERE locus_turns.tenant = locus_threads.tenant AND locus_turns.thread_id = locus_threads.thread_id AND locus_turns.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) THEN :param_3 ELSE :param_4 END AS turn, CASE WHEN (locus_threads.expires_at < FROM_TZ(CAST(:expires_at_1 AS TIMESTAMP), '+00:00')) THEN :param_5 ELSE :param_6 END AS expires, CASE WHEN (EXISTS (SELECT *
FROM locus_checkpoints side
WHERE side.line = locus_lines.line AND side.sequence >= locus_lines.floor AND side.sequence != locus_lines.head AND JSON_EXISTS(side.labels, '$."side_branch"[*]?(@.stringOnly() == $v)' PASSING :param_7 AS "v") AND NOT (EXISTS (SELECT *
FROM locus_checkpoints child
WHERE child.line = side.line AND child.sequence > side.sequence AND child.parent = side.sequence)))) THEN :param_8 ELSE :param_9 END AS conflict, (SELECT sum(coalesce(length(locus_messages.payload), :coalesce_1) + coalesce(length(locus_messages.text), :coalesce_2)) AS sum_2
FROM locus_messages
WHERE locus_messages.thread = page.thread) AS sizes, said.namespace AS said_namespace, said.sequence AS said_sequence, said.message_id AS said_message_id, said.role AS said_role, said.metadata AS said_metadata, said.created_at AS said_created_at, said.text AS said_text, said.payload AS said_payload, said.digest AS said_digest, (SELECT sum(locus_logs.message_count) AS sum_3
FROM locus_logs
WHERE locus_logs.thread = page.thread) AS messages
FROM page JOIN locus_threads ON locus_threads.thread = page.thread LEFT OUTER JOIN locus_lines ON locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = page.thread_id AND locus_lines.namespace = :namespace_5 LEFT OUTER JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head LEFT OUTER JOIN (SELECT locus_lines.thread_id AS thread_id, count(*) AS versions, sum(length(locus_checkpoints.payload)) AS own
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id IN (SELECT page.thread_id
FROM page) AND (locus_checkpoints.sequence >= locus_lines.floor OR locus_checkpoints.sequence = locus_lines.head) GROUP BY locus_lines.thread_id) counts ON counts.thread_id = page.thread_id LEFT OUTER JOIN (SELECT locus_logs.thread AS thread, locus_logs.namespace AS namespace, (SELECT max(locus_messages.sequence) AS max_6
FROM locus_messages
WHERE locus_messages.thread = locus_logs.thread AND locus_messages.namespace = locus_logs.namespace) AS sequence, row_number() OVER (PARTITION BY locus_logs.thread ORDER BY locus_logs.changed_at DESC, locus_logs.namespace) AS nth
FROM locus_logs
WHERE locus_logs.thread IN (SELECT page.thread
FROM page)) last_logs ON last_logs.thread = page.thread AND last_logs.nth = :nth_1 LEFT OUTER JOIN locus_messages said ON said.thread = last_logs.thread AND said.namespace = last_logs.namespace AND said.sequence = last_logs.sequence AND coalesce(length(said.payload), :coalesce_3) + coalesce(length(said.text), :coalesce_4) <= :param_25 ORDER BY page.active_at DESC, page.exact DESC, page.thread DESC
