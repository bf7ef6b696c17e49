-- param_1: str
-- contains_1: int as int
SELECT locus_search.line
FROM locus_search
WHERE contains(locus_search.tokens, :param_1) > :contains_1
