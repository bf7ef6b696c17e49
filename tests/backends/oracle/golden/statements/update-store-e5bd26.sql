-- metadata: NULL as DB_TYPE_JSON
-- version: int as int
-- created_at: datetime as DB_TYPE_TIMESTAMP
-- updated_at: datetime as DB_TYPE_TIMESTAMP
-- expires_at: NULL as DB_TYPE_TIMESTAMP
-- value: int as DB_TYPE_JSON
-- ttl_seconds: NULL
-- of_item: int as int
UPDATE locus_store SET metadata=:metadata, version=:version, created_at=FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), updated_at=FROM_TZ(CAST(:updated_at AS TIMESTAMP), '+00:00'), expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00'), value=:value, ttl_seconds=:ttl_seconds WHERE locus_store.item = :of_item
