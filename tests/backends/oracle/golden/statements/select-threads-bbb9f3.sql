-- param_1: int as int
-- param_2: int as int
-- param_3: int as int
-- tenant: str
-- thread_id: str
SELECT locus_threads.thread, CASE WHEN (locus_threads.expires_at IS NULL OR locus_threads.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) THEN :param_1 ELSE :param_2 END AS live, locus_threads.user_id, locus_threads.expires_at, locus_turns.turn
FROM (SELECT :param_3 AS one FROM DUAL) anon_1 LEFT OUTER JOIN locus_threads ON locus_threads.tenant = :tenant AND locus_threads.thread_id = :thread_id LEFT OUTER JOIN locus_turns ON locus_turns.tenant = :tenant AND locus_turns.thread_id = :thread_id AND locus_turns.expires_at > FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
