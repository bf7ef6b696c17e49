-- line: int as int
-- last: int as int
-- first: int as int
-- chain: int as int
-- payload: bytes as DB_TYPE_RAW
INSERT INTO locus_segments (line, last, first, chain, payload) VALUES (:line, :last, :first, :chain, :payload)
