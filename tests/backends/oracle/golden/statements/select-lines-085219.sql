-- known_line: int as int
-- known_sequence: int as int
-- known_digest: bytes
-- sequence_1: int as int
-- tenant: str
-- thread_id: str
-- namespace: str
SELECT locus_lines.line, locus_lines.head, heads.digest AS head_digest, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id, bases.sequence AS basis, records.sequence AS at, records.payload
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.sequence = locus_lines.head JOIN locus_checkpoints heads ON heads.line = locus_lines.line AND heads.sequence = locus_lines.head LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent LEFT OUTER JOIN locus_checkpoints bases ON bases.line = locus_checkpoints.line AND bases.line = :known_line AND bases.sequence = :known_sequence AND bases.digest = :known_digest AND bases.chain = locus_checkpoints.chain AND bases.sequence <= locus_checkpoints.sequence LEFT OUTER JOIN locus_checkpoints records ON records.line = locus_checkpoints.line AND records.chain = locus_checkpoints.chain AND records.sequence <= locus_checkpoints.sequence AND records.sequence >= coalesce(bases.sequence + :sequence_1, locus_checkpoints.chain)
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) ORDER BY records.sequence
