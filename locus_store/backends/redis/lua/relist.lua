-- Take a bucket's list over from layout 2. KEYS: its indexes; the old list, whose entries are the
-- minute of activity and the microsecond of birth in hexadecimal digits, and the id; and the hash of
-- each thread's entry. The list was to the minute; within it, as far as is known, by birth.
local active, old, entries = KEYS[1], KEYS[4], KEYS[5]
local found = redis.call('HGETALL', entries)
for at = 1, #found, 2 do
  local name, entry = found[at], found[at + 1]
  if redis.call('ZSCORE', old, entry) then
    local minute = tonumber(string.sub(entry, 1, 8), 16) * 60000000
    local moment = math.max(minute, tonumber(string.sub(entry, 9, 22), 16))
    redis.call('ZADD', active, 'NX', string.format('%.0f', moment), name)
  end
end
redis.call('DEL', old, entries)
return 1
