7 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
SELECT count(*) AS count_1
FROM locus_checkpoints
WHERE NOT (EXISTS (SELECT *
FROM locus_lines
WHERE locus_lines.line = locus_checkpoints.line))

-- execute
SELECT count(*) AS count_1
FROM locus_writes
WHERE NOT (EXISTS (SELECT *
FROM locus_lines
WHERE locus_lines.line = locus_writes.line))

-- execute
SELECT count(*) AS count_1
FROM locus_messages
WHERE NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.thread = locus_messages.thread))

-- execute
SELECT count(*) AS count_1
FROM locus_lines
WHERE NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id))

-- execute
SELECT count(*) AS count_1
FROM locus_lines
WHERE locus_lines.open_chain IS NOT NULL AND (NOT (EXISTS (SELECT *
FROM locus_checkpoints
WHERE locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head AND locus_checkpoints.chain = locus_lines.open_chain)) OR (EXISTS (SELECT *
FROM locus_checkpoints newer
WHERE newer.line = locus_lines.line AND newer.chain = locus_lines.open_chain AND newer.sequence > locus_lines.head)))

-- commit
