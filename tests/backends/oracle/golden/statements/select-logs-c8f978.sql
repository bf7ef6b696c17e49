SELECT count(*) AS count_1
FROM locus_logs
WHERE NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.thread = locus_logs.thread))
