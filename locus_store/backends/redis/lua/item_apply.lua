-- Put and remove items, all or none. ARGV: 1 layout; 2 numbers in an embedding, '' where none is
-- put; then six for each change, each of another item: 'put' or 'remove', name, the version that
-- must be there ('': any), seconds to live ('': for good), the bytes, the embeddings.
local known = call('HMGET', settings, 'layout', 'dimension')
if known[1] and known[1] ~= ARGV[1] then return {'layout', known[1]} end
if known[2] and ARGV[2] ~= '' and known[2] ~= ARGV[2] then return {'dimension', known[2]} end
-- A key of these names that is not ours fails here, before anything is written.
local last = call('ZREVRANGE', recent, 0, 0, 'WITHSCORES')[2]
call('ZCARD', names)
call('ZCARD', expiry)
call('HLEN', vectors)

local versions, births = {}, {}
for at = 3, #ARGV, 6 do
  local packed = live(ARGV[at + 1])
  local version, created = string.match(packed or '', '^(%d+) (%d+) ')
  version = version or '0'  -- also of a damaged item, which a put replaces
  local expected = ARGV[at + 2]
  if expected ~= '' and expected ~= version then return {'conflict', (at - 3) / 6, version} end
  versions[at], births[at] = tonumber(version), created
end

local updated = math.max(now, (tonumber(last) or 0) + 1)  -- also where the clock went back
local results, has_ttl = {}, false
-- First what takes memory: where there is none left, the first command fails and nothing was done.
for at = 3, #ARGV, 6 do
  local name, ttl, embeddings = ARGV[at + 1], ARGV[at + 3], ARGV[at + 5]
  if ARGV[at] == 'put' then
    local version = versions[at] + 1
    local time = whole(updated)
    call('HSET', items, name, version .. ' ' .. (births[at] or time) .. ' ' .. time .. ' '
      .. (ttl == '' and '-' or ttl) .. ' ' .. ARGV[at + 4])
    local is_new = call('ZADD', names, 0, name) == 1
    call('ZADD', recent, time, name)
    if ttl ~= '' then
      has_ttl = true
      call('ZADD', expiry, whole(math.floor(updated + ttl * 1000000 + 0.5)), name)
    elseif not is_new then
      call('ZREM', expiry, name)
    end
    if embeddings ~= '' then
      call('HSET', vectors, name, embeddings)
    elseif not is_new then
      call('HDEL', vectors, name)
    end
    updated = updated + 1
    results[(at + 3) / 6] = version
  end
end
if next(results) and not known[1] then call('HSET', settings, 'layout', ARGV[1]) end
if ARGV[2] ~= '' and not known[2] then call('HSET', settings, 'dimension', ARGV[2]) end
local gone = {}
for at = 3, #ARGV, 6 do
  if ARGV[at] == 'remove' then
    gone[#gone + 1] = ARGV[at + 1]
    results[(at + 3) / 6] = versions[at] > 0 and 1 or 0
  end
end
forget(gone)
-- Who puts items with a time to live takes away those that have been over for a minute.
if has_ttl then sweep(now - 60000000, 20) end
return {'done', results}
