-- param_1: datetime as DB_TYPE_TIMESTAMP
-- tenant_1: str
-- thread_id_1: str
UPDATE locus_lines SET updated_at=CASE WHEN (locus_lines.updated_at < FROM_TZ(CAST(:param_1 AS TIMESTAMP), '+00:00')) THEN FROM_TZ(CAST(:param_1 AS TIMESTAMP), '+00:00') ELSE locus_lines.updated_at END WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1 AND locus_lines.head IS NOT NULL
