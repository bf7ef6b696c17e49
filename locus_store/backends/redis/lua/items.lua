-- What all scripts of a store begin with. KEYS are those of items.make_keys; those that write may have
-- one more behind the one that is never there: the set of tenants.
local items, names, recent = KEYS[1], KEYS[2], KEYS[3]
local expiry, vectors, settings = KEYS[4], KEYS[5], KEYS[6]
local call = redis.call
local tenant = KEYS[8] and string.match(items, '}@(.*):items$')

local function whole(number) return string.format('%.0f', number) end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])  -- microseconds

-- Whether an item's time is over; and the end of it.
local function is_over(name)
  local expires = call('ZSCORE', expiry, name)
  return expires and tonumber(expires) <= now, expires or ''
end

-- What is kept of a live item, and the end of its time or ''; nil where there is none.
local function live(name)
  local packed = call('HGET', items, name)
  if not packed then return nil end
  local over, expires = is_over(name)
  if over then return nil end
  return packed, expires
end

-- Remove items. Something is written where there is none: WAIT waits for writes of its own connection,
-- and an earlier removal, which this one repeats, was on another one.
local function forget(gone)
  if gone[1] then redis.pcall('ZADD', names, 0, gone[1]) end
  for first = 1, #gone, 1000 do  -- Lua's stack has an end
    local last = math.min(first + 999, #gone)
    call('HDEL', items, unpack(gone, first, last))
    call('ZREM', names, unpack(gone, first, last))
    call('ZREM', recent, unpack(gone, first, last))
    call('ZREM', expiry, unpack(gone, first, last))
    call('HDEL', vectors, unpack(gone, first, last))
  end
  if KEYS[8] and call('EXISTS', names) == 0 then call('SREM', KEYS[8], tenant) end
end

-- Take away what was over at a time; how many.
local function sweep(over_at, limit)
  local over = call('ZRANGEBYSCORE', expiry, '-inf', whole(over_at), 'LIMIT', 0, limit)
  forget(over)
  return #over
end

-- Three texts as one, behind their lengths: clients take long to read many short answers.
local function joined(one, two, three)
  return struct.pack('>I4I4I4', #one, #two, #three) .. one .. two .. three
end

-- The page that a script answers with: it is full after so many rows or bytes.
local page, page_bytes = {}, 0
local function add(row, limit, most_bytes)
  page[#page + 1] = row
  page_bytes = page_bytes + #row
  return #page >= limit or page_bytes >= most_bytes
end

-- Go through names by code points until `take` says that it is enough, or so many were seen.
-- Returns the last one, or '' where there is none behind it.
local function walk(low, high, most, take)
  local seen = 0
  repeat
    local found = call('ZRANGEBYLEX', names, low, high, 'LIMIT', 0, 256)
    for _, name in ipairs(found) do
      if take(name) then return name end
    end
    if #found < 256 then return '' end
    low = '(' .. found[#found]
    seen = seen + #found
  until seen >= most
  return string.sub(low, 2)
end

--- apply
-- Put and remove items: of each call all or none. ARGV: 1 layout; 2 numbers in an embedding, ''
-- where none is put; then eight for each change, each of another item: 'put' or 'remove', name, the
-- version that must be there ('': any), seconds to live ('': for good), the bytes, the embeddings,
-- what a copy keeps ('': nothing; else version, creation, put, and the end of its time), and the
-- number of its call. Returns the results of all changes, and for each call that conflicts
-- its number, the index of the change from 0, and the version that is there.
local known = call('HMGET', settings, 'layout', 'dimension')
if known[1] and known[1] ~= ARGV[1] then return {'layout', known[1]} end
if known[2] and ARGV[2] ~= '' and known[2] ~= ARGV[2] then return {'dimension', known[2]} end
-- A key of these names that is not ours fails here, before anything is written.
local last = call('ZREVRANGE', recent, 0, 0, 'WITHSCORES')[2]
call('ZCARD', names)
call('ZCARD', expiry)
call('HLEN', vectors)
if KEYS[8] then call('SCARD', KEYS[8]) end

local versions, births, refused, conflicts = {}, {}, {}, {}
for at = 3, #ARGV, 8 do
  local packed = live(ARGV[at + 1])
  local version, created = string.match(packed or '', '^(%d+) (%d+) ')
  version = version or '0'  -- also of a damaged item, which a put replaces
  local expected, call_number = ARGV[at + 2], ARGV[at + 7]
  if expected ~= '' and expected ~= version and not refused[call_number] then
    refused[call_number] = true
    for _, it in ipairs({tonumber(call_number), (at - 3) / 8, tonumber(version)}) do
      conflicts[#conflicts + 1] = it
    end
  end
  versions[at], births[at] = tonumber(version), created
end

local updated = math.max(now, (tonumber(last) or 0) + 1)  -- also where the clock went back

-- The time of a copy's put: no later than now, or else the first behind it that no other item has,
-- since pages go by it.
local function free_time(name, wanted)
  local first, own = math.min(wanted, now), tonumber(call('ZSCORE', recent, name))
  local function are_taken(count)
    local found = call('ZCOUNT', recent, whole(first), whole(first + count - 1))
    return found - (own and own >= first and own < first + count and 1 or 0) == count
  end
  local least, most = 0, 1  -- microseconds that are taken, and that are not all
  while are_taken(most) do least, most = most, 2 * most end
  while most - least > 1 do
    local middle = math.floor((least + most) / 2)
    if are_taken(middle) then least = middle else most = middle end
  end
  return first + least
end

local results, has_put, has_ttl, has_vectors = {}, false, false, false
-- First what takes memory: where there is none left, the first command fails and nothing was done.
for at = 3, #ARGV, 8 do
  local name, ttl, embeddings = ARGV[at + 1], ARGV[at + 3], ARGV[at + 5]
  results[(at + 5) / 8] = 0
  if ARGV[at] == 'put' and not refused[ARGV[at + 7]] then
    has_put = true
    local version, time, birth, expires = versions[at] + 1, whole(updated), births[at], ''
    if ARGV[at + 6] ~= '' then
      version, birth, time, expires = string.match(ARGV[at + 6], '^(%d+) (%d+) (%d+) ?(%d*)$')
      time = free_time(name, tonumber(time))
      updated = math.max(updated, time + 1)
      version, time = tonumber(version), whole(time)
    else
      updated = updated + 1
    end
    call('HSET', items, name, version .. ' ' .. (birth or time) .. ' ' .. time .. ' '
      .. (ttl == '' and '-' or ttl) .. ' ' .. ARGV[at + 4])
    local is_new = call('ZADD', names, 0, name) == 1
    call('ZADD', recent, time, name)
    if ttl ~= '' then
      has_ttl = true
      call('ZADD', expiry, expires ~= '' and expires
        or whole(math.floor(time + ttl * 1000000 + 0.5)), name)
    elseif not is_new then
      call('ZREM', expiry, name)
    end
    if embeddings ~= '' then
      has_vectors = true
      call('HSET', vectors, name, embeddings)
    elseif not is_new then
      call('HDEL', vectors, name)
    end
    results[(at + 5) / 8] = version
  end
end
if has_put and not known[1] then call('HSET', settings, 'layout', ARGV[1]) end
if has_put and KEYS[8] then call('SADD', KEYS[8], tenant) end
if has_vectors and not known[2] then call('HSET', settings, 'dimension', ARGV[2]) end
local gone = {}
for at = 3, #ARGV, 8 do
  if ARGV[at] == 'remove' and not refused[ARGV[at + 7]] then
    gone[#gone + 1] = ARGV[at + 1]
    results[(at + 5) / 8] = versions[at] > 0 and 1 or 0
  end
end
forget(gone)
-- Who puts items with a time to live takes away those that have been over for a minute.
if has_ttl then sweep(now - 60000000, 20) end
return {'done', results, conflicts}

--- clear
-- Remove items by name. ARGV: 1, 2 see page; 3 how many at most. How many were live; and where
-- to go on, '' at the end.
local gone, lived = {}, 0
local at = walk(ARGV[1], ARGV[2], tonumber(ARGV[3]), function(name)
  gone[#gone + 1] = name
  if not is_over(name) then lived = lived + 1 end
end)
forget(gone[1] and gone or {''})  -- no item has this name
return {lived, at}

--- namespaces
-- Namespaces that have live items, in order. ARGV: 1, 2 see page; 3 how many. They, as names
-- begin with them; and where to go on, '' at the end.
local low, limit = ARGV[1], tonumber(ARGV[3])
for _ = 1, 10000 do
  local name = call('ZRANGEBYLEX', names, low, ARGV[2], 'LIMIT', 0, 1)[1]
  if not name then return {page, ''} end
  if is_over(name) then
    low = '(' .. name
  else
    local last = 0  -- that of the root has no segment
    if string.byte(name) ~= 0 then last = string.find(name, '\0\0', 1, true) end
    local namespace = string.sub(name, 1, last)
    low = '(' .. namespace .. '\0\255'  -- behind all of its keys, before what is below it
    if add(namespace, limit, math.huge) then break end
  end
end
return {page, string.sub(low, 2)}

--- page
-- Live items by name. ARGV: 1, 2 first and last name, as ZRANGEBYLEX takes them; 3, 4 how many, and
-- how many bytes. Name, end of its time and bytes of each, joined; and where to go on, '' at the end.
local limit, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = walk(ARGV[1], ARGV[2], 10000, function(name)
  local packed, expires = live(name)
  return packed and add(joined(name, expires, packed), limit, most_bytes)
end)
return {table.concat(page), at}

--- read
-- Items by name. ARGV: 1 '1': with their embeddings; then names. For each the end of its time, its
-- bytes ('': there is none) and its embeddings, joined.
for at = 2, #ARGV do
  local packed, expires = live(ARGV[at])
  local found = packed and ARGV[1] == '1' and call('HGET', vectors, ARGV[at]) or ''
  page[at - 1] = joined(expires or '', packed or '', found)
end
return table.concat(page)

--- recent
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

--- renew
-- Give items their whole time again. ARGV: names.
for _, name in ipairs(ARGV) do
  local packed = live(name)
  local ttl = packed and tonumber(string.match(packed, '^%d+ %d+ %d+ (%S+) '))
  if ttl then call('ZADD', expiry, whole(math.floor(now + ttl * 1000000 + 0.5)), name) end
end
return {}

--- sweep
-- Take away items whose time is over. ARGV: 1 how many at most. How many.
return sweep(now, ARGV[1])

--- vectors
-- Embeddings of live items. ARGV: see page. Name, microsecond of its put, and embeddings,
-- joined; and where to go on.
local limit, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = walk(ARGV[1], ARGV[2], 10000, function(name)
  local found = call('HGET', vectors, name)
  if not found or is_over(name) then return false end
  return add(joined(name, call('ZSCORE', recent, name), found), limit, most_bytes)
end)
return {table.concat(page), at}
