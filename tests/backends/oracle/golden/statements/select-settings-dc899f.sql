-- param_1: int as int
-- name_1: str
-- value_1: str
-- value_2: str
SELECT :param_1 AS anon_1 FROM DUAL
WHERE EXISTS (SELECT *
FROM locus_settings
WHERE locus_settings.name = :name_1 AND locus_settings.value != :value_1 AND locus_settings.value NOT LIKE :value_2)
