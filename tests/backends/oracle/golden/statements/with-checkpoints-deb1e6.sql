-- line_0: int as int
-- sequence_0: int as int
-- line_1: int as int
-- sequence_1: int as int
-- line_2: int as int
-- sequence_2: int as int
-- line_3: int as int
-- sequence_3: int as int
-- line_4: int as int
-- sequence_4: int as int
-- line_5: int as int
-- sequence_5: int as int
-- line_6: int as int
-- sequence_6: int as int
-- line_7: int as int
-- sequence_7: int as int
-- line_8: int as int
-- sequence_8: int as int
-- line_9: int as int
-- sequence_9: int as int
-- line_10: int as int
-- sequence_10: int as int
-- line_11: int as int
-- sequence_11: int as int
-- line_12: int as int
-- sequence_12: int as int
-- line_13: int as int
-- sequence_13: int as int
-- line_14: int as int
-- sequence_14: int as int
-- line_15: int as int
-- sequence_15: int as int
-- tenant: str
WITH wanted AS
(SELECT its.line AS line, its.sequence AS sequence, its.chain AS chain, its.checkpoint_id AS checkpoint_id
FROM locus_checkpoints its, (SELECT :line_0 AS line, :sequence_0 AS sequence FROM DUAL UNION SELECT :line_1 AS line, :sequence_1 AS sequence FROM DUAL UNION SELECT :line_2 AS line, :sequence_2 AS sequence FROM DUAL UNION SELECT :line_3 AS line, :sequence_3 AS sequence FROM DUAL UNION SELECT :line_4 AS line, :sequence_4 AS sequence FROM DUAL UNION SELECT :line_5 AS line, :sequence_5 AS sequence FROM DUAL UNION SELECT :line_6 AS line, :sequence_6 AS sequence FROM DUAL UNION SELECT :line_7 AS line, :sequence_7 AS sequence FROM DUAL UNION SELECT :line_8 AS line, :sequence_8 AS sequence FROM DUAL UNION SELECT :line_9 AS line, :sequence_9 AS sequence FROM DUAL UNION SELECT :line_10 AS line, :sequence_10 AS sequence FROM DUAL UNION SELECT :line_11 AS line, :sequence_11 AS sequence FROM DUAL UNION SELECT :line_12 AS line, :sequence_12 AS sequence FROM DUAL UNION SELECT :line_13 AS line, :sequence_13 AS sequence FROM DUAL UNION SELECT :line_14 AS line, :sequence_14 AS sequence FROM DUAL UNION SELECT :line_15 AS line, :sequence_15 AS sequence FROM DUAL) named
WHERE its.line = named.line AND its.sequence = named.sequence AND (SELECT locus_lines.tenant
FROM locus_lines
WHERE locus_lines.line = named.line) = :tenant)
 SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.chain, CAST(NULL AS NUMBER(19)) AS anon_1, (SELECT locus_writes.checkpoint_id
FROM locus_writes
WHERE locus_writes.line IS NULL) AS checkpoint_id, (SELECT locus_writes.task_id
FROM locus_writes
WHERE locus_writes.line IS NULL) AS task_id, (SELECT locus_writes.idx
FROM locus_writes
WHERE locus_writes.line IS NULL) AS idx, (SELECT locus_writes.channel
FROM locus_writes
WHERE locus_writes.line IS NULL) AS channel, (SELECT locus_writes.type
FROM locus_writes
WHERE locus_writes.line IS NULL) AS type, (SELECT locus_writes.task_path
FROM locus_writes
WHERE locus_writes.line IS NULL) AS task_path, (SELECT locus_writes.basis
FROM locus_writes
WHERE locus_writes.line IS NULL) AS basis, locus_checkpoints.payload
FROM (SELECT wanted.line AS line, wanted.chain AS chain, max(wanted.sequence) AS last
FROM wanted GROUP BY wanted.line, wanted.chain) chains JOIN locus_checkpoints ON locus_checkpoints.line = chains.line AND locus_checkpoints.chain = chains.chain AND locus_checkpoints.sequence BETWEEN chains.chain AND chains.last UNION ALL SELECT locus_segments.line, locus_segments.first, locus_segments.chain, locus_segments.last, (SELECT locus_writes.checkpoint_id
FROM locus_writes
WHERE locus_writes.line IS NULL) AS checkpoint_id, (SELECT locus_writes.task_id
FROM locus_writes
WHERE locus_writes.line IS NULL) AS task_id, (SELECT locus_writes.idx
FROM locus_writes
WHERE locus_writes.line IS NULL) AS idx, (SELECT locus_writes.channel
FROM locus_writes
WHERE locus_writes.line IS NULL) AS channel, (SELECT locus_writes.type
FROM locus_writes
WHERE locus_writes.line IS NULL) AS type, (SELECT locus_writes.task_path
FROM locus_writes
WHERE locus_writes.line IS NULL) AS task_path, (SELECT locus_writes.basis
FROM locus_writes
WHERE locus_writes.line IS NULL) AS basis, locus_segments.payload
FROM (SELECT wanted.line AS line, wanted.chain AS chain, max(wanted.sequence) AS last
FROM wanted GROUP BY wanted.line, wanted.chain) chains JOIN locus_segments ON locus_segments.line = chains.line AND locus_segments.chain = chains.chain AND locus_segments.first <= chains.last UNION ALL SELECT locus_writes.line, CAST(NULL AS NUMBER(19)) AS anon_1, CAST(NULL AS NUMBER(19)) AS anon__1, CAST(NULL AS NUMBER(19)) AS anon__2, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.payload
FROM wanted JOIN locus_writes ON locus_writes.line = wanted.line AND locus_writes.checkpoint_id = wanted.checkpoint_id
