-- tenant_1: str
-- param_1: float
SELECT DISTINCT locus_lines.thread_id
FROM locus_lines JOIN locus_checkpoints ON locus_checkpoints.line = locus_lines.line
WHERE locus_lines.tenant = :tenant_1 AND locus_checkpoints.created_at < (FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') + NUMTODSINTERVAL(CAST(-:param_1 AS DOUBLE PRECISION), 'SECOND'))
