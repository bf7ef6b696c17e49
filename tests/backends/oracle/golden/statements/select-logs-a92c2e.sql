-- coalesce_1: int as int
-- coalesce_2: int as int
SELECT count(*) AS count_1
FROM locus_logs LEFT OUTER JOIN (SELECT locus_messages.thread AS thread, locus_messages.namespace AS namespace, count(*) AS count, max(locus_messages.sequence) AS last
FROM locus_messages GROUP BY locus_messages.thread, locus_messages.namespace) owned ON owned.thread = locus_logs.thread AND owned.namespace = locus_logs.namespace
WHERE locus_logs.message_count != coalesce(owned.count, :coalesce_1) OR locus_logs.last_sequence < coalesce(owned.last, :coalesce_2)
