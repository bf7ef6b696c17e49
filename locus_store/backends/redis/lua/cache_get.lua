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
