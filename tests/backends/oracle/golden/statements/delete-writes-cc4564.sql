-- line_1: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line_1
