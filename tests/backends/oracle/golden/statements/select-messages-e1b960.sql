SELECT count(*) AS count_1
FROM locus_messages
WHERE NOT (EXISTS (SELECT *
FROM locus_threads
WHERE locus_threads.thread = locus_messages.thread))
