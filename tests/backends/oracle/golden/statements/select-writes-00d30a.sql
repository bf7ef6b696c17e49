-- line: int as int
-- checkpoint_id: str
SELECT locus_writes.task_id, locus_writes.idx
FROM locus_writes
WHERE locus_writes.line = :line AND locus_writes.checkpoint_id = :checkpoint_id
