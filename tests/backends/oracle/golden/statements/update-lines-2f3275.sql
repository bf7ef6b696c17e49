-- updated_at: datetime as DB_TYPE_TIMESTAMP
-- tenant_1: str
-- thread_id_1: str
UPDATE locus_lines SET updated_at=FROM_TZ(CAST(:updated_at AS TIMESTAMP), '+00:00') WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
