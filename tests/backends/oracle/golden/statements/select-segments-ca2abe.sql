SELECT count(*) AS count_1
FROM locus_segments
WHERE NOT (EXISTS (SELECT *
FROM locus_lines
WHERE locus_lines.line = locus_segments.line))
