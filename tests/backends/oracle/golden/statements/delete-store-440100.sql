-- item_1_1: int as int
-- item_1_2: int as int
DELETE FROM locus_store WHERE locus_store.item IN (:item_1_1, :item_1_2)
