-- What the rules decided of a namespace, if it is still as they saw it. ARGV: 1 to 5 name,
-- namespace, store, new line id, may create ('no': the thread existed); 6, 7 id and revision of the
-- line as it was ('': none); 8, 9 ttl and slack ('': the time to live stays); 10 '1': it was active;
-- then operations.
local row = opened(ARGV[2])
local is_here = row and row.is_here
local known = is_here and call('HMGET', line, 'id', 'rev') or {}
if (known[1] or '') ~= ARGV[6] or (known[2] or '') ~= ARGV[7] then return {'changed'} end
if is_here and is_damaged() then return {'damaged'} end
if is_missing(row, ARGV[5]) then return {'changed'} end
local ttl = tonumber(ARGV[8])
if ttl and row and not are_all_given(is_here and 0 or 1) then return namespaces() end
if not row and ARGV[5] ~= '1' then return {'create'} end
row = row or made(ARGV[1], ARGV[3])
local id = opened_line(row, ARGV[2], ARGV[4])

local at = 11
local function following()
  at = at + 1
  return ARGV[at - 1]
end
local operations = {}

-- What stands in a block, each for a place of its own; nil where it is damaged.
local function parts_of(first, last)
  if first < 0 then return nil end
  local block = call('LRANGE', log, first, first)[1]
  local chain, lengths, from = string.match(block, '^%+(%d+) ([%d ]*)\n()')
  local parts = {}
  for length in string.gmatch(lengths or '', '%d+') do
    parts[#parts + 1] = chain .. ' ' .. string.sub(block, from, from + length - 1)
    from = from + length
  end
  if #parts ~= last - first + 1 or from ~= #block + 1 then return nil end
  return parts
end

-- place <how many> <sequence> ... ; first of all, for what is rewritten or removed: its places, and
-- blocks that do not go whole are parted
local places = {}
function operations.place()
  local goes = {}
  for _ = 1, tonumber(following()) do
    local sequence = following()
    local place = call('ZCOUNT', order, '-inf', '(' .. sequence)
    places[sequence], goes[place] = place, true
  end
  local empty = {}
  for _, place in ipairs(call('LPOS', log, '', 'COUNT', 0)) do empty[place] = true end
  local parted = {}
  for place in pairs(goes) do
    local first, last = place, place
    while empty[first] do first = first - 1 end
    while empty[last + 1] do last = last + 1 end
    local goes_whole = true
    for at = first, last do goes_whole = goes_whole and goes[at] end
    if not goes_whole and not parted[first] then
      parted[first] = parts_of(first, last)
      if not parted[first] then return 'damaged' end
    end
  end
  for first, parts in pairs(parted) do
    for at, it in ipairs(parts) do call('LSET', log, first + at - 1, it) end
  end
end
-- rewrite <sequence> <chain> <payload>
function operations.rewrite()
  local place, chain = places[following()], following()
  call('LSET', log, place, chain .. ' ' .. following())
end
-- header <sequence> <header>
function operations.header() call('HSET', line, 'r' .. following(), following()) end
-- add <sequence> <id> <digest> <chain> <parent> <rest> <payload>
function operations.add()
  local sequence, checkpoint = following(), following()
  local digest, chain, parent, rest = following(), following(), following(), following()
  call('HSET', line, 'r' .. sequence, header(digest, chain, parent, whole(now), rest))
  call('ZADD', order, sequence, checkpoint)
  call('RPUSH', log, chain .. ' ' .. following())
end
-- remove <how many> <sequence> ...
function operations.remove()
  for _ = 1, tonumber(following()) do
    local sequence = following()
    call('LSET', log, places[sequence], '-')
    call('ZREMRANGEBYSCORE', order, sequence, sequence)
    call('HDEL', line, 'r' .. sequence)
  end
  call('LREM', log, 0, '-')
end
-- line <how many> <field> <value> ... ; an empty value takes the field away
function operations.line()
  for _ = 1, tonumber(following()) do
    local field, value = following(), following()
    if value == '' then call('HDEL', line, field) else call('HSET', line, field, value) end
  end
end
-- unwrite <checkpoint>
function operations.unwrite()
  local checkpoint = following()
  local there = written(checkpoint)
  for n = 1, #there, 2 do call('HDEL', writes, checkpoint .. '\0' .. there[n]) end
  call('HDEL', writes, checkpoint)
end
-- write <checkpoint> <field> <value>; where that begins with a blank, the time goes before it
function operations.write()
  local checkpoint, field, value = following(), following(), following()
  if string.sub(value, 1, 1) == ' ' then value = whole(now) .. value end
  put_write(checkpoint, field, value)
end
-- drop: the namespace goes
function operations.drop()
  for n = 2, 5 do call('DEL', KEYS[n]) end
  call('HDEL', thread, 'ns|' .. ARGV[2])
  call('HINCRBY', thread, 'lines', -1)
end
while at <= #ARGV do
  local failure = operations[following()]()
  if failure then return {failure} end
end
list_writes()

call('HDEL', line, 'alone')
local is_there = call('HINCRBY', line, 'rev', 1) > 0 and call('HEXISTS', line, 'id') == 1
local has_head = is_there and call('HEXISTS', line, 'head') == 1
if is_there then
  call('HSET', thread, 'ns|' .. ARGV[2], has_head and '1' or '0')
else
  call('DEL', line)
end
local exists = has_head or is_thread()
if not exists and call('HGET', thread, 'lines') == '0' then
  call('DEL', thread)
  forget(ARGV[1])
  settle_indexes()
  return {'done', row.store, id}
end
if ARGV[10] == '1' then
  touch(ARGV[1], row, ttl, tonumber(ARGV[9]))
elseif row.is_listed and not exists then
  call('HSET', thread, 'listed', '0')
  call('ZREM', active, ARGV[1])
elseif not is_there and not has_version() then
  rest(ARGV[1], row.minute)
end
if row.expires and not ttl then
  for n = 1, 6 do call('PEXPIREAT', KEYS[n], row.expires) end
end
return {'done', row.store, id}
