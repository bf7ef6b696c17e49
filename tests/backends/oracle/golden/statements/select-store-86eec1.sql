-- tenant_1: str
-- param_1: Decimal
-- param_2: str
SELECT locus_store.item, locus_store.metadata
FROM locus_store
WHERE locus_store.tenant = :tenant_1 AND (JSON_EXISTS(locus_store.metadata, '$."k"[*]?(@.numberOnly() == $v)' PASSING :param_1 AS "v") OR JSON_EXISTS(locus_store.metadata, '$."k"[*]?(@.stringOnly() == $v)' PASSING :param_2 AS "v")) FOR UPDATE
