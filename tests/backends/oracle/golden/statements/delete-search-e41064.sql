DELETE FROM locus_search
