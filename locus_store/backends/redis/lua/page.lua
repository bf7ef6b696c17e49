-- Live threads of buckets. KEYS: the three indexes of each. ARGV: 1 'active' or 'ids'; 2 how many of
-- each; then for each '' or the entry to go on behind. Of each: where its index ends for this page
-- ('' or the last entry), and the entries: ids, behind the microsecond of activity in 18 digits.
local call = redis.call
local clock = call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000
local kind, limit = ARGV[1], tonumber(ARGV[2])

-- By bytes, as Redis orders them: Lua's own comparison depends on the locale.
local function is_below(one, other)
  for at = 1, math.min(#one, #other) do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local function entries(found)
  local each = {}
  for n = 1, #found, 2 do each[#each + 1] = string.format('%018.0f', found[n + 1]) .. found[n] end
  return each
end

-- The next entries of the list: those of the same microsecond, then the earlier ones.
local function listed(active, at)
  local below = '+inf'
  local each = {}
  if at ~= '' then
    local moment, name = string.format('%.17g', string.sub(at, 1, 18)), string.sub(at, 19)
    for _, it in ipairs(call('ZREVRANGEBYSCORE', active, moment, moment)) do
      if is_below(it, name) and #each < limit then each[#each + 1] = string.sub(at, 1, 18) .. it end
    end
    below = '(' .. moment
  end
  local rest = limit - #each
  if rest == 0 then return each end
  local found = call('ZREVRANGEBYSCORE', active, below, '-inf', 'WITHSCORES', 'LIMIT', 0, rest)
  for _, it in ipairs(entries(found)) do each[#each + 1] = it end
  return each
end

local function page(active, ids, expiry, at)
  local found_of = {''}
  while true do
    local found
    if kind == 'active' then
      found = listed(active, at)
    else
      local above = at == '' and '-' or '(' .. at
      found = call('ZRANGEBYLEX', ids, above, '+', 'LIMIT', 0, limit)
    end
    for _, entry in ipairs(found) do
      at = entry
      local name = kind == 'active' and string.sub(entry, 19) or entry
      local expires = call('ZSCORE', expiry, name)
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
for n = 1, #KEYS / 3 do
  pages[n] = page(KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n], ARGV[2 + n])
end
return pages
