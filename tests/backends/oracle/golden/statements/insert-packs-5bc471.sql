-- line: int as int
-- sequence: int as int
-- basis: NULL as int
-- digest: bytes
-- payload: bytes as DB_TYPE_RAW
INSERT INTO locus_packs (line, sequence, basis, digest, payload) VALUES (:line, :sequence, :basis, :digest, :payload)
