-- user_id: NULL
-- name: NULL
-- metadata: NULL as DB_TYPE_JSON
-- created_at: datetime as DB_TYPE_TIMESTAMP
-- active_at: datetime as DB_TYPE_TIMESTAMP
-- expires_at: NULL as DB_TYPE_TIMESTAMP
-- tenant_1: str
-- thread_id_1: str
UPDATE locus_threads SET user_id=:user_id, name=:name, metadata=:metadata, created_at=FROM_TZ(CAST(:created_at AS TIMESTAMP), '+00:00'), active_at=FROM_TZ(CAST(:active_at AS TIMESTAMP), '+00:00'), expires_at=FROM_TZ(CAST(:expires_at AS TIMESTAMP), '+00:00') WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id = :thread_id_1
