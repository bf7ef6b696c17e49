-- item_1_1: int as int
DELETE FROM locus_embeddings WHERE locus_embeddings.item IN (:item_1_1)
