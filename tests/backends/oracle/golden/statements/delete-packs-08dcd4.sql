DELETE FROM locus_packs WHERE NOT (EXISTS (SELECT *
FROM locus_lines
WHERE locus_lines.line = locus_packs.line))
