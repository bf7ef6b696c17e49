-- tenant: str
-- tenant_1: str
-- thread_id_1: str
UPDATE locus_lines SET tenant=:tenant WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
