-- Live items, the last put first. ARGV: 1 what their names begin with; 2, 3 only those that were
-- put before and after these microseconds ('': any); 4, 5 how many, and how many bytes. Name, end of
-- its time and bytes of each, joined; where to go on, '' at the end; and when the very last put was.
local prefix, before, after = ARGV[1], ARGV[2], ARGV[3]
local limit, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local low = prefix == '' and '-' or '[' .. prefix
local high = prefix == '' and '+' or '(' .. prefix .. '\255'
local below, all = call('ZLEXCOUNT', names, low, high), call('ZCARD', recent)

local function take(name)
  local packed, expires = live(name)
  return packed and add(joined(name, expires, packed), limit, most_bytes)
end

-- By the order of all items, leaving out those elsewhere; nil where that takes too long.
local function among_all()
  local least = after == '' and '-inf' or '(' .. after
  for _ = 1, 40 do
    local most = before == '' and '+inf' or '(' .. before
    local found = call('ZREVRANGEBYSCORE', recent, most, least, 'WITHSCORES', 'LIMIT', 0, 256)
    for at = 1, #found, 2 do
      before = found[at + 1]
      if string.sub(found[at], 1, #prefix) == prefix and take(found[at]) then return before end
    end
    if #found < 512 then return '' end
  end
  return nil
end

-- By putting in order what is below the prefix.
local function among_those_below()
  local rows = {}
  local most, least = tonumber(before) or math.huge, tonumber(after) or -1
  for _, name in ipairs(call('ZRANGEBYLEX', names, low, high)) do
    local order = tonumber(call('ZSCORE', recent, name))
    if order < most and order > least then rows[#rows + 1] = {order, name} end
  end
  table.sort(rows, function(one, other) return one[1] > other[1] end)
  for _, row in ipairs(rows) do
    if take(row[2]) then return whole(row[1]) end
  end
  return ''
end

local at
-- The one looks at `below`; the other at `limit * all / below` where prefixes are evenly mixed.
local are_few = below <= 20000
if below > 0 then
  if not are_few or below * below > limit * all then at = among_all() end
  if not at then at = are_few and among_those_below() or before end
end
return {table.concat(page), at or '', call('ZREVRANGE', recent, 0, 0, 'WITHSCORES')[2] or ''}
