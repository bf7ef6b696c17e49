-- usage: dict as DB_TYPE_JSON
-- revision: int as int
-- tenant_1: str
-- revision_1: int as int
UPDATE locus_quotas SET usage=:usage, revision=:revision WHERE locus_quotas.tenant = :tenant_1 AND locus_quotas.revision = :revision_1
