-- name_1: str
SELECT locus_settings.value
FROM locus_settings
WHERE (locus_settings.name LIKE :name_1 || '%')
