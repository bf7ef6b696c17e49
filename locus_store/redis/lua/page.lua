-- Live threads of buckets. KEYS: the four indexes of each. ARGV: 1 'recent' or 'ids'; 2 how many of
-- each; then for each '' or the entry to go on behind. Of each: where its index ends for this page
-- ('' or the last entry), and the entries.
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000
local kind, limit = ARGV[1], tonumber(ARGV[2])

local function page(recent, ids, expiry, at)
  local found_of = {''}
  while true do
    local found
    if kind == 'recent' then
      local below = at == '' and '+' or '(' .. at
      found = redis.call('ZREVRANGEBYLEX', recent, below, '-', 'LIMIT', 0, limit)
    else
      local above = at == '' and '-' or '(' .. at
      found = redis.call('ZRANGEBYLEX', ids, above, '+', 'LIMIT', 0, limit)
    end
    for _, entry in ipairs(found) do
      at = entry
      local name = kind == 'recent' and string.sub(entry, 23) or entry
      local expires = redis.call('ZSCORE', expiry, name)
      if not expires or tonumber(expires) > now_ms then
        found_of[#found_of + 1] = entry
        if #found_of > limit then
          found_of[1] = at
          return found_of
        end
      end
    end
    if #found < limit then return found_of end
  end
end

local pages = {}
for n = 1, #KEYS / 4 do
  pages[n] = page(KEYS[4 * n - 3], KEYS[4 * n - 2], KEYS[4 * n], ARGV[2 + n])
end
return pages
