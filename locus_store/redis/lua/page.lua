-- Live threads of a bucket. KEYS: its indexes. ARGV: 1 'recent' or 'ids'; 2 '' or the entry to go on
-- behind; 3 how many. An entry each, and where the index ends for this page: '' or the last entry.
local recent, ids, entries, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000
local limit = tonumber(ARGV[3])
local at, page = ARGV[2], {}
while true do
  local found
  if ARGV[1] == 'recent' then
    local below = at == '' and '+' or '(' .. at
    found = redis.call('ZREVRANGEBYLEX', recent, below, '-', 'LIMIT', 0, limit)
  else
    local above = at == '' and '-' or '(' .. at
    found = redis.call('ZRANGEBYLEX', ids, above, '+', 'LIMIT', 0, limit)
  end
  for _, entry in ipairs(found) do
    at = entry
    local name = ARGV[1] == 'recent' and string.sub(entry, 23) or entry
    local expires = redis.call('ZSCORE', expiry, name)
    if not expires or tonumber(expires) > now_ms then
      page[#page + 1] = entry
      if #page == limit then return {page, at} end
    end
  end
  if #found < limit then return {page, ''} end
end
