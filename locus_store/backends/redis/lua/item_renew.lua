-- Give items their whole time again. ARGV: names.
for _, name in ipairs(ARGV) do
  local packed = live(name)
  local ttl = packed and tonumber(string.match(packed, '^%d+ %d+ %d+ (%S+) '))
  if ttl then call('ZADD', expiry, whole(math.floor(now + ttl * 1000000 + 0.5)), name) end
end
return {}
