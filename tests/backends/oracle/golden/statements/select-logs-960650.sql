-- tenant: str
-- thread_id: str
-- namespace: str
-- role: str
-- until: datetime as DB_TYPE_TIMESTAMP
-- offset: int as int
-- limit: int as int
SELECT locus_logs.revision, locus_logs.message_count, locus_logs.changed_at, page.sequence, page.message_id, page.role, page.metadata, page.created_at, page.text, page.payload, page.digest
FROM locus_logs LEFT OUTER JOIN (SELECT locus_messages.thread AS thread, locus_messages.sequence AS sequence, locus_messages.message_id AS message_id, locus_messages.role AS role, locus_messages.metadata AS metadata, locus_messages.created_at AS created_at, locus_messages.text AS text, locus_messages.payload AS payload, locus_messages.digest AS digest
FROM locus_messages
WHERE locus_messages.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id) AND locus_messages.namespace = :namespace AND locus_messages.role = :role AND locus_messages.created_at <= FROM_TZ(CAST(:until AS TIMESTAMP), '+00:00') ORDER BY locus_messages.sequence DESC
 OFFSET :offset ROWS
 FETCH FIRST :limit ROWS ONLY) page ON page.thread = locus_logs.thread
WHERE locus_logs.thread = (SELECT locus_threads.thread
FROM locus_threads
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00'))) AND locus_logs.namespace = :namespace ORDER BY page.sequence
