-- Embeddings of live items. ARGV: see item_page. Name, microsecond of its put, and embeddings,
-- joined; and where to go on.
local limit, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = walk(ARGV[1], ARGV[2], 10000, function(name)
  local found = call('HGET', vectors, name)
  if not found or is_over(name) then return false end
  return add(joined(name, call('ZSCORE', recent, name), found), limit, most_bytes)
end)
return {table.concat(page), at}
