-- user_id: str
-- name: str
-- metadata: dict as DB_TYPE_JSON
-- tenant_1: str
-- thread_id_1_1: str
UPDATE locus_threads SET user_id=:user_id, name=:name, metadata=:metadata WHERE locus_threads.tenant = :tenant_1 AND locus_threads.thread_id IN (:thread_id_1_1)
