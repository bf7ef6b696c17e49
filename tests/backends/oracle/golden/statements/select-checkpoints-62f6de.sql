-- param_1: str
-- line_1_1: int as int
-- sequence_1_1: int as int
-- sequence_1_2: int as int
-- sequence_1_3: int as int
SELECT locus_checkpoints.line, locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.payload
FROM (SELECT wanted.line AS line, wanted.chain AS chain, max(wanted.sequence) AS last
FROM locus_checkpoints wanted
WHERE wanted.line IN (:line_1_1) AND (SELECT locus_lines.tenant
FROM locus_lines
WHERE locus_lines.line = wanted.line) = :param_1 AND wanted.sequence IN (:sequence_1_1, :sequence_1_2, :sequence_1_3) GROUP BY wanted.line, wanted.chain) chains JOIN locus_checkpoints ON locus_checkpoints.line = chains.line AND locus_checkpoints.chain = chains.chain AND locus_checkpoints.sequence BETWEEN chains.chain AND chains.last
