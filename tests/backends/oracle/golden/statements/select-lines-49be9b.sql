-- checkpoint_id: str
-- known_line: int as int
-- known_sequence: int as int
-- known_digest: bytes
-- sequence_1: int as int
-- tenant: str
-- thread_id: str
-- namespace: str
-- coalesce_1: int as int
SELECT locus_lines.line, locus_lines.head, heads.digest AS head_digest, locus_checkpoints.sequence, locus_checkpoints.checkpoint_id, locus_checkpoints.digest, locus_checkpoints.metadata, locus_checkpoints.labels, locus_checkpoints.created_at, parents.checkpoint_id AS parent_id, bases.sequence AS basis, locus_packs.sequence AS pack, records.sequence AS at, CASE WHEN (locus_packs.sequence IS NOT NULL) THEN locus_packs.payload ELSE records.payload END AS payload
FROM locus_lines JOIN locus_threads ON locus_threads.tenant = locus_lines.tenant AND locus_threads.thread_id = locus_lines.thread_id JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line AND locus_checkpoints.checkpoint_id = :checkpoint_id AND (locus_checkpoints.sequence >= locus_lines.floor OR locus_checkpoints.sequence = locus_lines.head) JOIN locus_checkpoints heads ON heads.line = locus_lines.line AND heads.sequence = locus_lines.head LEFT OUTER JOIN locus_checkpoints parents ON parents.line = locus_checkpoints.line AND parents.sequence = locus_checkpoints.parent LEFT OUTER JOIN locus_checkpoints bases ON bases.line = locus_checkpoints.line AND bases.line = :known_line AND bases.sequence = :known_sequence AND bases.digest = :known_digest AND bases.chain = locus_checkpoints.chain AND bases.sequence <= locus_checkpoints.sequence LEFT OUTER JOIN locus_checkpoints records ON records.line = locus_checkpoints.line AND records.chain = locus_checkpoints.chain AND records.sequence <= locus_checkpoints.sequence AND records.sequence >= coalesce(bases.sequence + :sequence_1, locus_checkpoints.chain) LEFT OUTER JOIN locus_packs ON locus_packs.line = records.line AND locus_packs.sequence = records.sequence AND locus_packs.digest = records.digest AND bases.sequence IS NULL
WHERE locus_lines.tenant = :tenant AND locus_lines.thread_id = :thread_id AND locus_lines.namespace = :namespace AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (bases.sequence IS NOT NULL OR locus_packs.sequence IS NOT NULL OR records.sequence IS NULL OR records.sequence > coalesce((SELECT max(known_packs.sequence) AS max_1
FROM locus_packs known_packs
WHERE known_packs.line = locus_checkpoints.line AND known_packs.sequence <= locus_checkpoints.sequence AND (EXISTS (SELECT *
FROM locus_checkpoints packed
WHERE packed.line = known_packs.line AND packed.sequence = known_packs.sequence AND packed.digest = known_packs.digest AND packed.chain = locus_checkpoints.chain))), :coalesce_1)) ORDER BY records.sequence
