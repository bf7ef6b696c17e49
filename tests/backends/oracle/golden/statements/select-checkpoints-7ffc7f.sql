-- line: int as int
-- floor: int as int
-- head: int as int
-- end: int as int
-- limit: int
SELECT locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id
FROM locus_checkpoints LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent
WHERE locus_checkpoints.line = :line AND (locus_checkpoints.sequence >= :floor OR locus_checkpoints.sequence = :head) AND locus_checkpoints.sequence < :end ORDER BY locus_checkpoints.sequence DESC
 FETCH FIRST :limit ROWS ONLY
