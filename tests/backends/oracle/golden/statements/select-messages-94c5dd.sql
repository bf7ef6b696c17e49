-- tenant: str
-- prefix: str
-- beyond: str
-- namespace: str
-- after_thread: str
-- namespace_1: str
-- namespace_2: str
-- param_1: int as int
-- param_2: int as int
-- limit: int as int
-- log_namespace_1: str
-- param_3: int as int
-- param_4: int as int
SELECT page.thread_id, page.log_namespace, page.revision, page.message_count, page.changed_at, locus_messages.namespace, locus_messages.sequence, locus_messages.message_id, locus_messages.role, locus_messages.metadata, locus_messages.created_at, locus_messages.text, locus_messages.payload, locus_messages.digest
FROM (SELECT locus_threads.thread_id AS thread_id, locus_logs.namespace AS log_namespace, locus_logs.revision AS revision, locus_logs.message_count AS message_count, locus_logs.changed_at AS changed_at, locus_logs.thread AS thread
FROM locus_threads JOIN locus_logs ON locus_logs.thread = locus_threads.thread
WHERE locus_threads.tenant = :tenant AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND locus_threads.thread_id >= :prefix AND locus_threads.thread_id < :beyond AND locus_logs.namespace = :namespace AND locus_threads.thread_id >= :after_thread AND (locus_threads.thread_id > :after_thread OR locus_logs.namespace != :namespace_1) ORDER BY locus_threads.thread_id, CASE WHEN (locus_logs.namespace = :namespace_2) THEN :param_1 ELSE :param_2 END, locus_logs.namespace
 FETCH FIRST :limit ROWS ONLY) page LEFT OUTER JOIN locus_messages ON locus_messages.thread = page.thread AND locus_messages.namespace = page.log_namespace AND locus_messages.sequence = (SELECT max(others.sequence) AS max_1
FROM locus_messages others
WHERE others.thread = page.thread AND others.namespace = page.log_namespace) ORDER BY page.thread_id, CASE WHEN (page.log_namespace = :log_namespace_1) THEN :param_3 ELSE :param_4 END, page.log_namespace, locus_messages.sequence
