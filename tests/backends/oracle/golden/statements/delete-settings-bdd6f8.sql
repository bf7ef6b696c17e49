-- name_1: str
-- value_1: str
DELETE FROM locus_settings WHERE (locus_settings.name LIKE :name_1 || '%') AND locus_settings.value = :value_1
