-- tenant_1: str
-- param_1: Decimal
-- param_2: str
SELECT locus_threads.thread_id, locus_threads.user_id, locus_threads.metadata
FROM locus_threads
WHERE locus_threads.tenant = :tenant_1 AND (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) AND (JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_1 AS "v") OR JSON_EXISTS(locus_threads.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_2 AS "v"))
