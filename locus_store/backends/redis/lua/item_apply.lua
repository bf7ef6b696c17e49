-- Put and remove items: of each call all or none. ARGV: 1 layout; 2 numbers in an embedding, ''
-- where none is put; then seven for each change, each of another item: 'put' or 'remove', name, the
-- version that must be there ('': any), seconds to live ('': for good), the bytes, the embeddings,
-- and the number of its call. Returns the results of all changes, and for each call that conflicts
-- its number, the index of the change from 0, and the version that is there.
local known = call('HMGET', settings, 'layout', 'dimension')
if known[1] and known[1] ~= ARGV[1] then return {'layout', known[1]} end
if known[2] and ARGV[2] ~= '' and known[2] ~= ARGV[2] then return {'dimension', known[2]} end
-- A key of these names that is not ours fails here, before anything is written.
local last = call('ZREVRANGE', recent, 0, 0, 'WITHSCORES')[2]
call('ZCARD', names)
call('ZCARD', expiry)
call('HLEN', vectors)

local versions, births, refused, conflicts = {}, {}, {}, {}
for at = 3, #ARGV, 7 do
  local packed = live(ARGV[at + 1])
  local version, created = string.match(packed or '', '^(%d+) (%d+) ')
  version = version or '0'  -- also of a damaged item, which a put replaces
  local expected, call_number = ARGV[at + 2], ARGV[at + 6]
  if expected ~= '' and expected ~= version and not refused[call_number] then
    refused[call_number] = true
    for _, it in ipairs({tonumber(call_number), (at - 3) / 7, tonumber(version)}) do
      conflicts[#conflicts + 1] = it
    end
  end
  versions[at], births[at] = tonumber(version), created
end

local updated = math.max(now, (tonumber(last) or 0) + 1)  -- also where the clock went back
local results, has_put, has_ttl, has_vectors = {}, false, false, false
-- First what takes memory: where there is none left, the first command fails and nothing was done.
for at = 3, #ARGV, 7 do
  local name, ttl, embeddings = ARGV[at + 1], ARGV[at + 3], ARGV[at + 5]
  results[(at + 4) / 7] = 0
  if ARGV[at] == 'put' and not refused[ARGV[at + 6]] then
    has_put = true
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
      has_vectors = true
      call('HSET', vectors, name, embeddings)
    elseif not is_new then
      call('HDEL', vectors, name)
    end
    updated = updated + 1
    results[(at + 4) / 7] = version
  end
end
if has_put and not known[1] then call('HSET', settings, 'layout', ARGV[1]) end
if has_vectors and not known[2] then call('HSET', settings, 'dimension', ARGV[2]) end
local gone = {}
for at = 3, #ARGV, 7 do
  if ARGV[at] == 'remove' and not refused[ARGV[at + 6]] then
    gone[#gone + 1] = ARGV[at + 1]
    results[(at + 4) / 7] = versions[at] > 0 and 1 or 0
  end
end
forget(gone)
-- Who puts items with a time to live takes away those that have been over for a minute.
if has_ttl then sweep(now - 60000000, 20) end
return {'done', results, conflicts}
