SELECT avg(anon_1."size") AS avg_1
FROM (SELECT length(locus_checkpoints.payload) AS "size"
FROM locus_checkpoints
 FETCH FIRST 10000 ROWS ONLY) anon_1
