SELECT locus_lines.line
FROM locus_lines
