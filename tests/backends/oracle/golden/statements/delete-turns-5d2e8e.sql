-- tenant_1: str
-- thread_id_1: str
-- revision_1: int as int
DELETE FROM locus_turns WHERE locus_turns.tenant = :tenant_1 AND locus_turns.thread_id = :thread_id_1 AND locus_turns.revision = :revision_1
