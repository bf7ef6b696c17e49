-- line_1: int as int
-- line_2: int as int
-- sequence_1_1: int as int
-- sequence_1_2: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line_1 AND locus_writes.checkpoint_id IN (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line_2 AND locus_checkpoints.sequence IN (:sequence_1_1, :sequence_1_2))
