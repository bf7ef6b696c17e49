-- tenant: str
-- limits: dict as DB_TYPE_JSON
-- usage: dict as DB_TYPE_JSON
-- revision: int as int
INSERT INTO locus_quotas (tenant, limits, usage, revision) VALUES (:tenant, :limits, :usage, :revision)
