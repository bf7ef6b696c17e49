-- line: int as int
-- parent_0: int as int
-- parent_1: int as int
-- parent_2: int as int
-- parent_3: int as int
-- parent_4: int as int
-- parent_5: int as int
-- parent_6: int as int
-- parent_7: int as int
-- parent_8: int as int
-- parent_9: int as int
-- parent_10: int as int
-- parent_11: int as int
-- parent_12: int as int
-- parent_13: int as int
-- parent_14: int as int
-- parent_15: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.parent IN (:parent_0, :parent_1, :parent_2, :parent_3, :parent_4, :parent_5, :parent_6, :parent_7, :parent_8, :parent_9, :parent_10, :parent_11, :parent_12, :parent_13, :parent_14, :parent_15)
