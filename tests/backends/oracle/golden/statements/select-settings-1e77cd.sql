-- name_1: str
SELECT locus_settings.name
FROM locus_settings
WHERE locus_settings.name = :name_1
