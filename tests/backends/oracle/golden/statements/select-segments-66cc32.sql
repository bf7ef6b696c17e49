-- param_1: int as int
SELECT count(*) AS count_1
FROM (SELECT :param_1 AS anon_2
FROM locus_segments
 FETCH FIRST 1000001 ROWS ONLY) anon_1
