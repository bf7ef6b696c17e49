-- line: int as int
-- parent_0: int as int
SELECT locus_checkpoints.sequence, locus_checkpoints.chain, locus_checkpoints.parent, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels
FROM locus_checkpoints
WHERE locus_checkpoints.line = :line AND locus_checkpoints.parent IN (:parent_0)
