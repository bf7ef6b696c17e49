-- tenant: str
-- tenant_1: str
-- thread_id_1: str
UPDATE locus_threads SET tenant=:tenant WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1
