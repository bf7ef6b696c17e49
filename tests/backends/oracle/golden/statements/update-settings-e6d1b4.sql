-- name_1: str
UPDATE locus_settings SET value=locus_settings.value WHERE locus_settings.name = :name_1
