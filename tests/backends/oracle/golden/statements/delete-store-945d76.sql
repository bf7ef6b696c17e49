-- item_0: int as int
DELETE FROM locus_store WHERE locus_store.item IN (:item_0)
