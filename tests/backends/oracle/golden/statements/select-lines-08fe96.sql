SELECT count(*) AS count_1
FROM locus_lines
WHERE locus_lines.open_chain IS NOT NULL AND (NOT (EXISTS (SELECT *
FROM locus_checkpoints
WHERE locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head AND locus_checkpoints.chain = locus_lines.open_chain)) OR (EXISTS (SELECT *
FROM locus_checkpoints newer
WHERE newer.line = locus_lines.line AND newer.chain = locus_lines.open_chain AND newer.sequence > locus_lines.head)))
