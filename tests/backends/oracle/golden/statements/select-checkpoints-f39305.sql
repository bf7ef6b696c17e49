-- line_0: int as int
-- line_1: int as int
-- line_2: int as int
-- line_3: int as int
-- line_4: int as int
-- line_5: int as int
-- line_6: int as int
-- line_7: int as int
-- line_8: int as int
-- line_9: int as int
-- line_10: int as int
-- line_11: int as int
-- line_12: int as int
-- line_13: int as int
-- line_14: int as int
-- line_15: int as int
-- its_tenant: str
-- sequence_0: int as int
-- sequence_1: int as int
-- sequence_2: int as int
-- sequence_3: int as int
-- sequence_4: int as int
-- sequence_5: int as int
-- sequence_6: int as int
-- sequence_7: int as int
-- sequence_8: int as int
-- sequence_9: int as int
-- sequence_10: int as int
-- sequence_11: int as int
-- sequence_12: int as int
-- sequence_13: int as int
-- sequence_14: int as int
-- sequence_15: int as int
SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM (SELECT wanted.line AS line, wanted.chain AS chain, max(wanted.sequence) AS last
FROM locus_checkpoints wanted
WHERE wanted.line IN (:line_0, :line_1, :line_2, :line_3, :line_4, :line_5, :line_6, :line_7, :line_8, :line_9, :line_10, :line_11, :line_12, :line_13, :line_14, :line_15) AND (SELECT locus_lines.tenant
FROM locus_lines
WHERE locus_lines.line = wanted.line) = :its_tenant AND wanted.sequence IN (:sequence_0, :sequence_1, :sequence_2, :sequence_3, :sequence_4, :sequence_5, :sequence_6, :sequence_7, :sequence_8, :sequence_9, :sequence_10, :sequence_11, :sequence_12, :sequence_13, :sequence_14, :sequence_15) GROUP BY wanted.line, wanted.chain) chains JOIN locus_checkpoints ON locus_checkpoints.line = chains.line AND locus_checkpoints.chain = chains.chain AND locus_checkpoints.sequence BETWEEN chains.chain AND chains.last
