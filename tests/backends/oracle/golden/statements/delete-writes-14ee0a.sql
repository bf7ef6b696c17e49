-- line: int as int
-- checkpoint_id: str
-- task_id: str
-- idx: int as int
DELETE FROM locus_writes WHERE locus_writes.line = :line AND locus_writes.checkpoint_id = :checkpoint_id AND locus_writes.task_id = :task_id AND locus_writes.idx = :idx
