-- saved_at: datetime as DB_TYPE_TIMESTAMP
-- of_line: int as int
UPDATE locus_lines SET updated_at=FROM_TZ(CAST(:saved_at AS TIMESTAMP), '+00:00') WHERE locus_lines.line = :of_line AND locus_lines.updated_at < FROM_TZ(CAST(:saved_at AS TIMESTAMP), '+00:00')
