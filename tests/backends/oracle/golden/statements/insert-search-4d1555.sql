-- line: int as int
-- sequence: int as int
-- tokens: str as DB_TYPE_NVARCHAR
INSERT INTO locus_search (line, sequence, tokens) VALUES (:line, :sequence, :tokens)
