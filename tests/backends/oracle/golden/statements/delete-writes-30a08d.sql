-- of_line: int as int
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
DELETE FROM locus_writes WHERE locus_writes.line = :of_line AND locus_writes.checkpoint_id IN (SELECT locus_checkpoints.checkpoint_id
FROM locus_checkpoints
WHERE locus_checkpoints.line = :of_line AND locus_checkpoints.sequence IN (:sequence_0, :sequence_1, :sequence_2, :sequence_3, :sequence_4, :sequence_5, :sequence_6, :sequence_7, :sequence_8, :sequence_9, :sequence_10, :sequence_11, :sequence_12, :sequence_13, :sequence_14, :sequence_15))
