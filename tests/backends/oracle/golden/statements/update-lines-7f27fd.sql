-- saved_at: datetime as DB_TYPE_TIMESTAMP
-- of_tenant: str
-- of_thread_id: str
UPDATE locus_lines SET updated_at=CASE WHEN (locus_lines.updated_at < FROM_TZ(CAST(:saved_at AS TIMESTAMP), '+00:00')) THEN FROM_TZ(CAST(:saved_at AS TIMESTAMP), '+00:00') ELSE locus_lines.updated_at END WHERE locus_lines.tenant = :of_tenant AND locus_lines.thread_id = :of_thread_id AND locus_lines.head IS NOT NULL
