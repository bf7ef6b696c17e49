-- tenant: str
-- thread_id: str
-- namespace: str
-- after: str
SELECT (SELECT places.sequence
FROM locus_messages places JOIN locus_threads ON locus_threads.thread = places.thread
WHERE locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND places.namespace = :namespace AND places.message_id = :after) AS anon_1 FROM DUAL
