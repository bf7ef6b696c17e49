-- item_1_1: int as int
DELETE FROM locus_store WHERE locus_store.item IN (:item_1_1)
