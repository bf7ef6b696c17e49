SELECT count(*) AS count_1
FROM locus_lines
WHERE NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id))
