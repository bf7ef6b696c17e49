-- item: int as int
-- part: int as int
-- embedding: array
INSERT INTO locus_embeddings (item, part, embedding) VALUES (:item, :part, :embedding)
