-- param_1: str
-- tenant_1: str
-- thread_id_1: str
INSERT INTO locus_lines (thread_id, updated_at, tenant, namespace, head, open_chain, open_bytes, floor, last_sequence) SELECT :param_1 AS anon_1, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00') AS moment_1, locus_lines.tenant, locus_lines.namespace, locus_lines.head, locus_lines.open_chain, locus_lines.open_bytes, locus_lines.floor, locus_lines.last_sequence
FROM locus_lines
WHERE locus_lines.tenant = :tenant_1 AND locus_lines.thread_id = :thread_id_1
