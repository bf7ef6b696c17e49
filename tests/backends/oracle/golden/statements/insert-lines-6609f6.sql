-- tenant: str
-- thread_id: str
-- namespace: str
-- ret_0: TwinVar as int
INSERT INTO locus_lines (tenant, thread_id, namespace, updated_at) VALUES (:tenant, :thread_id, :namespace, FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')) RETURNING locus_lines.line INTO :ret_0
