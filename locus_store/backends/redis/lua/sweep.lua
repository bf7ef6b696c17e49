-- Take threads whose time is over out of a bucket's indexes. KEYS: its indexes. ARGV: at most so
-- many. How many.
local active, ids, expiry = KEYS[1], KEYS[2], KEYS[3]
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local over = redis.call('ZRANGEBYSCORE', expiry, '-inf', now_ms, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(over) do
  redis.call('ZREM', active, name)
  redis.call('ZREM', ids, name)
  redis.call('ZREM', expiry, name)
end
return #over
