-- value: str
-- name_1: str
-- value_1: str
UPDATE locus_settings SET value=:value WHERE locus_settings.name = :name_1 AND locus_settings.value = :value_1
