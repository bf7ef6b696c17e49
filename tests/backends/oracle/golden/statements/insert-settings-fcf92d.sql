-- name: str
-- value: str
INSERT INTO locus_settings (name, value) VALUES (:name, :value)
