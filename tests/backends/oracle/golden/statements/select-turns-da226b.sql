-- tenant_1: str
SELECT locus_turns.thread_id
FROM locus_turns
WHERE locus_turns.tenant = :tenant_1 AND locus_turns.expires_at <= FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')
