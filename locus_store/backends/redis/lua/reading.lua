-- What reading scripts begin with. KEYS are those of Keys.reading.
local thread, line, order, log, writes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call

local function whole(number) return string.format('%.0f', number) end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])  -- microseconds
local now_ms = math.floor(now / 1000)

local function is_over(expires) return expires and tonumber(expires) <= now_ms end

-- The namespace, which the line's name ends with.
local function namespace_given()
  local function plain(hex) return string.char(tonumber(hex, 16)) end
  return (string.gsub(string.match(line, '[^|]*$'), '%%(%x%x)', plain))
end

-- The thread's store, where it is there, and whether it has the namespace. Where it has not, what
-- the line's keys hold is left of a thread that lost its row: it is not read, and makes room.
local function found()
  local row = call('HMGET', thread, 'store', 'expires', 'ns|' .. namespace_given())
  if row[1] and not is_over(row[2]) then return row[1], row[3] end
  return nil
end

local function id_at(sequence) return call('ZRANGEBYSCORE', order, sequence, sequence)[1] end

-- Whether a thread that has this namespace lost keys of it, as a server that evicts takes them.
-- known: the line's id and head, where they were read.
local function is_damaged(known)
  local id, head = unpack(known or call('HMGET', line, 'id', 'head'), 1, 2)
  if not id then return true end
  local rows = call('ZCARD', order)
  if call('LLEN', log) ~= rows then return true end
  return head and rows == 0
end

-- digest, chain, parent (0: none) and microsecond of a version; what is said of it stands behind.
local function told(header)
  local digest, chain, parent, created = string.match(header, '^(%x+) (%d+) (%d+) (%d+) ')
  return digest, chain, parent, created
end

-- Pending writes of a checkpoint: fields (task, NUL, place) and values, in pairs. They have a
-- field each, behind the checkpoint's id and a NUL, and the id alone is a list of them.
local function written(checkpoint)
  local pairs_found = {}
  local index = call('HGET', writes, checkpoint)
  for field in string.gmatch(index or '', '([^%z]*%z[^%z]+)%z') do
    pairs_found[#pairs_found + 1] = field
    pairs_found[#pairs_found + 1] = call('HGET', writes, checkpoint .. '\0' .. field)
  end
  return pairs_found
end
