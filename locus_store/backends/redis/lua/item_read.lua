-- Items by name. ARGV: 1 '1': with their embeddings; then names. For each the end of its time, its
-- bytes ('': there is none) and its embeddings, joined.
for at = 2, #ARGV do
  local packed, expires = live(ARGV[at])
  local found = packed and ARGV[1] == '1' and call('HGET', vectors, ARGV[at]) or ''
  page[at - 1] = joined(expires or '', packed or '', found)
end
return table.concat(page)
