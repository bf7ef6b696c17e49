12 calls of the driver

-- execute
SET TRANSACTION READ ONLY

-- execute
SELECT FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS clock_1 FROM DUAL

-- execute
SELECT 'revision' AS name, locus_version.version_num
FROM locus_version UNION ALL SELECT locus_settings.name, locus_settings.value
FROM locus_settings

-- execute
--   name_1_1: str
--   name_1_2: str
SELECT locus_settings.name, locus_settings.value
FROM locus_settings
WHERE locus_settings.name IN (:name_1_1, :name_1_2)

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_threads
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_lines
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_checkpoints
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_writes
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_messages
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
--   param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_store
 FETCH FIRST 1000001 ROWS ONLY) anon_1

-- execute
SELECT avg(anon_1."size") AS avg_1
FROM (SELECT length(locus_checkpoints.payload) AS "size"
FROM locus_checkpoints
 FETCH FIRST 10000 ROWS ONLY) anon_1

-- commit
