-- What the rules decided of a namespace, if it is still as they saw it. ARGV: 1 to 5 name,
-- namespace, store, new line id, may create; 6, 7 id and revision of the line as it was ('': none);
-- 8, 9 ttl and slack ('': the time to live stays); 10 '1': it was active; then operations.
local row = opened(ARGV[2])
local is_here = row and row.is_here
local known = is_here and call('HMGET', line, 'id', 'rev') or {}
if (known[1] or '') ~= ARGV[6] or (known[2] or '') ~= ARGV[7] then return {'changed'} end
if is_here and is_damaged() then return {'damaged'} end
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
local function rank(sequence) return call('ZCOUNT', order, '-inf', '(' .. sequence) end

-- The empty places of the log, whose payloads stand in a block before them.
local empty = nil
local function is_empty(at)
  if not empty then
    empty = {}
    for _, it in ipairs(call('LPOS', log, '', 'COUNT', 0)) do empty[it] = true end
  end
  return empty[at]
end

-- The places of the block that a place is in, or that place alone.
local function block_at(at)
  local first, last = at, at
  while is_empty(first) do first = first - 1 end
  while is_empty(last + 1) do last = last + 1 end
  return first, last
end

-- Put the payloads of a block into their own places.
local function part(first, last)
  if first == last then return end
  local block = call('LRANGE', log, first, first)[1]
  local chain, lengths, from = string.match(block, '^%+(%d+) ([%d ]*)\n()')
  for length in string.gmatch(lengths, '%d+') do
    call('LSET', log, first, chain .. ' ' .. string.sub(block, from, from + length - 1))
    empty[first] = nil
    first, from = first + 1, from + length
  end
end

-- rewrite <sequence> <chain> <payload>
function operations.rewrite()
  local at = rank(following())
  part(block_at(at))
  local chain = following()
  call('LSET', log, at, chain .. ' ' .. following())
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
-- remove <how many> <sequence> ... ; once, behind what is rewritten
function operations.remove()
  local sequences, places, goes = {}, {}, {}
  for n = 1, tonumber(following()) do
    sequences[n] = following()
    places[n] = rank(sequences[n])
    goes[places[n]] = true
  end
  for _, place in ipairs(places) do
    local first, last = block_at(place)
    for at = first, last do
      if not goes[at] then
        part(first, last)
        break
      end
    end
    call('LSET', log, place, '-')
  end
  call('LREM', log, 0, '-')
  for _, sequence in ipairs(sequences) do
    call('ZREMRANGEBYSCORE', order, sequence, sequence)
    call('HDEL', line, 'r' .. sequence)
  end
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
while at <= #ARGV do operations[following()]() end
list_writes()

call('HDEL', line, 'alone')
local is_there = call('HINCRBY', line, 'rev', 1) > 0 and call('HEXISTS', line, 'id') == 1
if not is_there then
  call('DEL', line)
  if call('HGET', thread, 'lines') == '0' and call('EXISTS', messages) == 0 then
    call('DEL', thread)
    forget(ARGV[1])
    settle_indexes()
    return {'done', row.store, id}
  end
end
local is_listed = row.is_listed
if ARGV[2] == '' then is_listed = is_there and call('HEXISTS', line, 'head') == 1 end
if ARGV[10] == '1' then
  touch(ARGV[1], row, is_listed, ttl, tonumber(ARGV[9]))
elseif is_listed ~= row.is_listed then
  call('HSET', thread, 'listed', is_listed and '1' or '0')
  enter(ARGV[1], row.created, row.minute, is_listed)
  settle_indexes()
end
if row.expires and not ttl then
  for n = 1, 6 do call('PEXPIREAT', KEYS[n], row.expires) end
end
return {'done', row.store, id}
