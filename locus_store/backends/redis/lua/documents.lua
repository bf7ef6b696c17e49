-- Documents of threads. Each is a list: its tag, then parts of its content. The tag is a generation and
-- the token of the last put, 8 bytes each, the number of parts and the bytes in them. A put that
-- continues a document adds a part and keeps its generation. KEYS of a document, where all are named:
-- its list, the indexes of its bucket ('active', 'ids', 'expiry'), a key that is never there, and for
-- another tenant than 'default' the set of those that have threads in the bucket.
local call = redis.call
local clock = call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local LINGER_MS = 60000  -- so long an expired document stays in the indexes

local function content_of(key, from) return table.concat(call('LRANGE', key, from, -1)) end

local function tenant() return string.match(KEYS[3], '}@(.*):ids$') end

local function forget(name)
  call('ZREM', KEYS[2], name)
  call('ZREM', KEYS[3], name)
  if KEYS[6] and call('EXISTS', KEYS[3]) == 0 then call('SREM', KEYS[6], tenant()) end
  return call('ZREM', KEYS[4], name)
end

--- get
-- KEYS: lists. ARGV: of each the known tag, or ''. Of each nothing; or one string, since clients take
-- long to read many short answers: 'k' (the tag is known), 'c' (continues the known one) or 'w'
-- (whole), the length of the tag in a byte, the tag and, but for 'k', the content.
local function found(key, known)
  local tag = call('LINDEX', key, 0)
  if not tag then return false end
  local head = string.char(#tag) .. tag
  if tag == known then return 'k' .. head end
  if string.sub(known, 1, 8) == string.sub(tag, 1, 8) then
    local parts = tonumber(string.match(known, '^(%d+) ', 17))
    if parts < tonumber(string.match(tag, '^(%d+) ', 17)) then
      return 'c' .. head .. content_of(key, parts + 1)
    end
  end
  local parts = call('LRANGE', key, 0, -1)
  parts[1] = 'w' .. head
  return table.concat(parts)
end

if #KEYS == 1 then return found(KEYS[1], ARGV[1]) end
local each = {}
for n = 1, #KEYS do each[n] = found(KEYS[n], ARGV[n]) end
return each

--- confirm
-- ARGV: the thread's id. Write what is there once more: WAIT waits for writes of its own connection.
local tag = call('LINDEX', KEYS[1], 0)
if tag then
  call('LSET', KEYS[1], 0, tag)
else
  call('ZADD', KEYS[3], 0, ARGV[1])
  call('ZREM', KEYS[3], ARGV[1])
end
return 'done'

--- put
-- ARGV: 1 the thread's id; 2 the tag that must be there ('': none); 3 the token of this put; 4 bytes
-- kept of the content; 5 the rest; 6 microsecond of activity ('': it does not exist); 7 millisecond of
-- its expiry ('': none). The new tag; nothing if another one is there.
local name, tag, token, kept, rest = unpack(ARGV, 1, 5)
local active, ids, expiry = unpack(KEYS, 2, 4)
if (call('LINDEX', KEYS[1], 0) or '') ~= tag then return false end
-- The indexes first: a key of these names that is not ours fails before the content is written. And
-- first of all what takes memory: where there is none left, it fails, and nothing was done.
call('ZADD', ids, 0, name)
if KEYS[6] then call('SADD', KEYS[6], tenant()) end
local expires = tonumber(ARGV[7])
if expires then
  call('ZADD', expiry, expires, name)
else
  call('ZREM', expiry, name)
end
if ARGV[6] == '' then call('ZREM', active, name) else call('ZADD', active, ARGV[6], name) end
local parts, size = string.match(tag, '^(%d+) (%d+)$', 17)
kept = tonumber(kept)
if kept == tonumber(size) then
  tag = string.sub(tag, 1, 8) .. token .. parts + 1 .. ' ' .. kept + #rest
  call('RPUSH', KEYS[1], rest)
  call('LSET', KEYS[1], 0, tag)
else
  rest = string.sub(content_of(KEYS[1], 1), 1, kept) .. rest
  tag = token .. token .. '1 ' .. #rest
  call('DEL', KEYS[1])
  call('RPUSH', KEYS[1], tag, rest)
end
if expires then
  call('PEXPIREAT', KEYS[1], expires + LINGER_MS)
  for _, it in ipairs(call('ZRANGEBYSCORE', expiry, '-inf', now_ms - LINGER_MS, 'LIMIT', 0, 20)) do
    forget(it)
  end
else
  call('PERSIST', KEYS[1])
end
return tag

--- delete
-- ARGV: 1 the thread's id; 2 the tag that must be there. It; nothing if another one is there.
if call('LINDEX', KEYS[1], 0) ~= ARGV[2] then return false end
call('DEL', KEYS[1])
forget(ARGV[1])
return ARGV[2]

--- expired
-- KEYS: 'expiry'. ARGV: how many at most. Threads whose time is over.
return call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])

--- expire
-- ARGV: a thread's id. Remove it if its time is over, or its list was lost; 1, or 0 where it had none.
local expires = call('ZSCORE', KEYS[4], ARGV[1])
if call('EXISTS', KEYS[1]) == 1 and not (expires and tonumber(expires) <= now_ms) then return 0 end
call('DEL', KEYS[1])
return forget(ARGV[1])

--- page
-- Live threads of buckets. KEYS: the three indexes of each. ARGV: 1 'active' or 'ids'; 2 how many of
-- each; then for each '' or the entry to go on behind. One string of parts, with a NUL between them. Of
-- each bucket: the number of its other parts; where its index ends for this page ('' or the last
-- entry); and the entries: ids, behind the microsecond of activity in 18 digits.
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
  local found_of, may_expire = {''}, call('EXISTS', expiry) == 1
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
      local expires = may_expire and call('ZSCORE', expiry, name)
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

local parts = {}
for n = 1, #KEYS / 3 do
  local found = page(KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n], ARGV[2 + n])
  parts[#parts + 1] = #found
  for _, it in ipairs(found) do parts[#parts + 1] = it end
end
return table.concat(parts, '\0')
