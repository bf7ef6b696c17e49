-- What all scripts of a store begin with. KEYS are those of items.keys_of.
local items, names, recent = KEYS[1], KEYS[2], KEYS[3]
local expiry, vectors, settings = KEYS[4], KEYS[5], KEYS[6]
local call = redis.call

local function whole(number) return string.format('%.0f', number) end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])  -- microseconds

-- Whether an item's time is over; and the end of it.
local function is_over(name)
  local expires = call('ZSCORE', expiry, name)
  return expires and tonumber(expires) <= now, expires or ''
end

-- What is kept of a live item, and the end of its time or ''; nil where there is none.
local function live(name)
  local packed = call('HGET', items, name)
  if not packed then return nil end
  local over, expires = is_over(name)
  if over then return nil end
  return packed, expires
end

local function forget(gone)
  for first = 1, #gone, 1000 do  -- Lua's stack has an end
    local last = math.min(first + 999, #gone)
    call('HDEL', items, unpack(gone, first, last))
    call('ZREM', names, unpack(gone, first, last))
    call('ZREM', recent, unpack(gone, first, last))
    call('ZREM', expiry, unpack(gone, first, last))
    call('HDEL', vectors, unpack(gone, first, last))
  end
end

-- Take away what was over at a time; how many.
local function sweep(over_at, limit)
  local over = call('ZRANGEBYSCORE', expiry, '-inf', whole(over_at), 'LIMIT', 0, limit)
  forget(over)
  return #over
end

-- Three texts as one, behind their lengths: clients take long to read many short answers.
local function joined(one, two, three)
  return struct.pack('>I4I4I4', #one, #two, #three) .. one .. two .. three
end

-- The page that a script answers with: it is full after so many rows or bytes.
local page, page_bytes = {}, 0
local function add(row, limit, most_bytes)
  page[#page + 1] = row
  page_bytes = page_bytes + #row
  return #page >= limit or page_bytes >= most_bytes
end

-- Go through names by code points until `take` says that it is enough, or so many were seen.
-- Returns the last one, or '' where there is none behind it.
local function walk(low, high, most, take)
  local seen = 0
  repeat
    local found = call('ZRANGEBYLEX', names, low, high, 'LIMIT', 0, 256)
    for _, name in ipairs(found) do
      if take(name) then return name end
    end
    if #found < 256 then return '' end
    low = '(' .. found[#found]
    seen = seen + #found
  until seen >= most
  return string.sub(low, 2)
end
