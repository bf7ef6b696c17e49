-- A cache of states: one hash for each entry, and an index where entries are counted.

--- get
-- Return a cached entry, and renew its time to live and its place among the used ones.
-- KEYS: entry, index. ARGV: time to live in ms, 1 if the index is kept.
local found = redis.pcall('HGET', KEYS[1], 'entry')
if type(found) == 'table' then  -- the key is of another type
  redis.call('DEL', KEYS[1])
end
if type(found) ~= 'string' then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
if ARGV[2] == '1' then
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000), KEYS[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return found

--- put
-- Set a cached entry, unless a newer one is there; drop the least recently used ones.
-- KEYS: entry, index. ARGV: time to live in ms, entries at most (0: any), store, place (the line and
-- sequence, of one length), 1 if it is a working state, entry, and the mark that the database has
-- disproved (or ''). A mark is the store and the place.
local ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local old = redis.pcall('HMGET', KEYS[1], 'store', 'place', 'working')
if old.err then  -- the key is of another type
  redis.call('DEL', KEYS[1])
  old = {}
end
local is_known = old[1] and old[2] ~= '' and ARGV[4] ~= '' and old[1] == ARGV[3]
if is_known and old[1] .. old[2] ~= ARGV[7] then
  if old[2] > ARGV[4] or (old[2] == ARGV[4] and old[3] > ARGV[5]) then
    return 0
  end
end
redis.call('HSET', KEYS[1], 'store', ARGV[3], 'place', ARGV[4], 'working', ARGV[5], 'entry', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ttl)
if most > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[2], now, KEYS[1])
  redis.call('PEXPIRE', KEYS[2], ttl)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ttl)
  local extra = redis.call('ZCARD', KEYS[2]) - most
  if extra > 0 then
    local oldest = redis.call('ZRANGE', KEYS[2], 0, extra - 1)
    for _, key in ipairs(oldest) do
      redis.call('DEL', key)
      redis.call('ZREM', KEYS[2], key)
    end
  end
end
return 1
