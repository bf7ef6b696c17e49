-- of_tenant: str
-- of_thread_id: str
SELECT locus_turns.tickets
FROM locus_turns
WHERE locus_turns.tenant = :of_tenant AND locus_turns.thread_id = :of_thread_id FOR UPDATE
