-- line: int as int
-- checkpoint_id: str
SELECT locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line = :line AND locus_writes.checkpoint_id = :checkpoint_id
