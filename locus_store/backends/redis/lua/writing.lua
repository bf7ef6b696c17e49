-- What writing scripts begin with, behind reading.lua. KEYS are those of Keys.writing.
local messages, active, ids, expiry = KEYS[6], KEYS[7], KEYS[8], KEYS[9]

-- Take a thread out of the indexes.
local function forget(name)
  call('ZREM', active, name)
  call('ZREM', ids, name)
  call('ZREM', expiry, name)
end

-- How long the indexes have threads whose time is over: in milliseconds, for expire() to count.
local LINGER = 60000

-- Put a thread into the list at the microsecond of its last activity.
local function list_at(name, moment)
  call('ZADD', active, whole(math.max(0, moment)), name)
end

-- Take away what was over for long. The indexes go by themselves behind the last thread in them,
-- where all have a time to live.
local function settle_indexes()
  local over = call('ZRANGEBYSCORE', expiry, '-inf', now_ms - LINGER, 'LIMIT', 0, 100)
  for _, name in ipairs(over) do forget(name) end
  local last = nil
  if call('ZCARD', ids) == call('ZCARD', expiry) then
    last = call('ZREVRANGE', expiry, 0, 0, 'WITHSCORES')[2]
  end
  for at = 7, 9 do
    if last then call('PEXPIREAT', KEYS[at], whole(last + LINGER)) else call('PERSIST', KEYS[at]) end
  end
end

-- The thread's keys: its own two, and four for each namespace that was given.
local function each_key(work)
  for at = 1, #KEYS do
    if at < 7 or at > 10 then work(KEYS[at]) end
  end
end

local function expire_at(name, expires)
  call('HSET', thread, 'expires', expires)
  call('ZADD', expiry, expires, name)
  settle_indexes()
  each_key(function(key) call('PEXPIREAT', key, expires) end)
end

-- Whether all namespaces were given, with those that are made now: so many more.
local function are_all_given(more)
  for at = 11, #KEYS, 4 do
    if call('EXISTS', KEYS[at]) == 0 then return false end
  end
  local lines = tonumber(call('HGET', thread, 'lines') or '0') + more
  if lines == 0 then return #KEYS == 10 end
  return lines * 4 == #KEYS - 6 and (more == 1 or call('EXISTS', line) == 1)
end

local function namespaces()
  local names = {'lines'}
  for _, field in ipairs(call('HKEYS', thread)) do
    if string.sub(field, 1, 3) == 'ns|' then names[#names + 1] = string.sub(field, 4) end
  end
  return names
end

-- What a server without memory refuses: behind any other write it would refuse nothing.
local function begin_anew(store) call('HSET', thread, 'store', store) end

-- The thread's row, and whether it has the namespace; nil where it is not there or over.
local function opened(namespace)
  local row = call('HMGET', thread, 'store', 'expires', 'minute', 'listed', 'ns|' .. namespace)
  if row[1] and not is_over(row[2]) then
    return {store = row[1], expires = row[2], minute = tonumber(row[3]),
      is_listed = row[4] == '1', is_here = row[5]}
  end
  return nil
end

-- Whether a thread must exist, and does not.
local function is_missing(row, may_create)
  return may_create == 'no' and not (row and row.is_listed)
end

-- The row of a thread that is not there or over, which is made.
local function made(name, store)
  begin_anew(store)
  each_key(function(key) call('DEL', key) end)
  forget(name)
  local minute = math.floor(now / 60000000)
  call('HSET', thread, 'store', store, 'created', whole(now), 'minute', minute, 'listed', '0',
    'lines', 0)
  call('ZADD', ids, 0, name)
  settle_indexes()
  return {store = store, minute = minute, is_listed = false}
end

-- Whether one of the thread's namespaces has a head, which '1' in its field says.
local function has_version()
  local row = call('HGETALL', thread)
  for at = 1, #row, 2 do
    if string.sub(row[at], 1, 3) == 'ns|' and row[at + 1] == '1' then return true end
  end
  return false
end

-- Whether the thread exists, by its row: it has a version, a log, a name or a user.
local function is_thread()
  return call('HEXISTS', thread, 'logs') == 1 or call('HEXISTS', thread, 'user') == 1
    or call('HEXISTS', thread, 'name') == 1 or has_version()
end

-- Put a thread without versions where the last change of its logs puts it, else to the minute of its last
-- activity.
local function rest(name, minute)
  local moment = tonumber(call('HGET', thread, 'logged')) or minute * 60000000
  list_at(name, moment)
  call('HSET', thread, 'minute', math.floor(moment / 60000000))
end

-- Note that a version was saved, and from when on the thread is over. ttl: milliseconds, or nil.
local function touch(name, row, ttl, slack)
  local minute = math.floor(now / 60000000)
  list_at(name, now)
  if minute ~= row.minute or not row.is_listed then
    call('HSET', thread, 'minute', minute, 'listed', '1')
    settle_indexes()
  end
  if ttl then
    local expires = math.floor(now / 1000 + ttl)
    local old = row.expires and tonumber(row.expires)
    if not old or old < expires or old > expires + slack then
      expire_at(name, whole(expires + slack))
      return
    end
  end
  if row.expires then  -- what was made now goes with the rest
    for at = 1, 6 do call('PEXPIREAT', KEYS[at], row.expires) end
  end
end

-- The namespace's id, which is made where it is not there, without a head.
local function opened_line(row, namespace, new_id)
  if row.is_here then return call('HGET', line, 'id') end
  call('HSET', thread, 'ns|' .. namespace, '0')
  call('HINCRBY', thread, 'lines', 1)
  call('DEL', line, order, log, writes)  -- what is left of a thread that lost its row
  call('HSET', line, 'id', new_id, 'floor', 0, 'last', 0, 'bytes', 0, 'rev', 0)
  return new_id
end

local function header(digest, chain, parent, created, rest)
  return digest .. ' ' .. chain .. ' ' .. parent .. ' ' .. created .. ' ' .. rest
end

local PACKED, SMALL = 32, 2048

-- So many payloads of a chain in one element of the log, which a load reads faster; and what stands
-- in the places of all but the first.
local function block_of(chain, payloads)
  local lengths, empty = {}, {}
  for at, payload in ipairs(payloads) do
    lengths[at] = #payload
    if at > 1 then empty[at - 1] = '' end
  end
  return '+' .. chain .. ' ' .. table.concat(lengths, ' ') .. '\n' .. table.concat(payloads), empty
end

local new_fields = {}

-- Put a pending write; list_writes() has to follow.
local function put_write(checkpoint, field, value)
  if call('HSET', writes, checkpoint .. '\0' .. field, value) == 1 then
    local fields = new_fields[checkpoint] or {}
    new_fields[checkpoint] = fields
    fields[#fields + 1] = field .. '\0'
  end
end

-- Enter what was put into the lists of the checkpoints: once, for a list may be long.
local function list_writes()
  for checkpoint, fields in pairs(new_fields) do
    local index = call('HGET', writes, checkpoint) or ''
    call('HSET', writes, checkpoint, index .. table.concat(fields))
  end
  new_fields = {}
end
