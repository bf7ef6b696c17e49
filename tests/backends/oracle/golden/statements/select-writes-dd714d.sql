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
-- checkpoint_id_0: str
-- checkpoint_id_1: str
-- checkpoint_id_2: str
-- checkpoint_id_3: str
-- checkpoint_id_4: str
-- checkpoint_id_5: str
-- checkpoint_id_6: str
-- checkpoint_id_7: str
-- checkpoint_id_8: str
-- checkpoint_id_9: str
-- checkpoint_id_10: str
-- checkpoint_id_11: str
-- checkpoint_id_12: str
-- checkpoint_id_13: str
-- checkpoint_id_14: str
-- checkpoint_id_15: str
SELECT locus_writes.line, locus_writes.checkpoint_id, locus_writes.task_id, locus_writes.idx, locus_writes.channel, locus_writes.type, locus_writes.task_path, locus_writes.basis, locus_writes.payload
FROM locus_writes
WHERE locus_writes.line IN (:line_0, :line_1, :line_2, :line_3, :line_4, :line_5, :line_6, :line_7, :line_8, :line_9, :line_10, :line_11, :line_12, :line_13, :line_14, :line_15) AND (SELECT locus_lines.tenant
FROM locus_lines
WHERE locus_lines.line = locus_writes.line) = :its_tenant AND locus_writes.checkpoint_id IN (:checkpoint_id_0, :checkpoint_id_1, :checkpoint_id_2, :checkpoint_id_3, :checkpoint_id_4, :checkpoint_id_5, :checkpoint_id_6, :checkpoint_id_7, :checkpoint_id_8, :checkpoint_id_9, :checkpoint_id_10, :checkpoint_id_11, :checkpoint_id_12, :checkpoint_id_13, :checkpoint_id_14, :checkpoint_id_15)
