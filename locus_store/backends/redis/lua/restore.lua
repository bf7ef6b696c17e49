-- A thread as it was elsewhere, unless there is one. ARGV: 1 name; 2 store; 3 a token, by which to
-- know it again when the answer was lost; 4 the microsecond of its last activity, '' where it
-- is active now; how many fields and values of the thread's row; they; how
-- many messages; they; and of each namespace that was given: its name; how many fields and values of
-- its line; they; how many versions, and of each sequence, id, header, chain and payload; how many
-- writes, and of each checkpoint, field and value.
local name, store, token = ARGV[1], ARGV[2], ARGV[3]
if found() then return {call('HGET', thread, 'restored') == token and 'done' or 'there'} end
local moment = tonumber(ARGV[4]) or now
local at = 5
local function following()
  at = at + 1
  return ARGV[at - 1]
end
begin_anew(store)
each_key(function(key) call('DEL', key) end)
forget(name)
call('HSET', thread, 'store', store, 'restored', token)
for _ = 1, tonumber(following()) do call('HSET', thread, following(), following()) end
if ARGV[4] == '' then call('HSET', thread, 'minute', math.floor(now / 60000000)) end
for _ = 1, tonumber(following()) do call('RPUSH', messages, following()) end
local lines = 0
local function restore_line(first, second, third, fourth)
  line, order, log, writes = first, second, third, fourth
  local namespace = following()
  local has_head = '0'
  lines = lines + 1
  for _ = 1, tonumber(following()) do
    local field, value = following(), following()
    call('HSET', line, field, value)
    if field == 'head' then has_head = '1' end
  end
  call('HSET', thread, 'ns|' .. namespace, has_head)
  local last, small = nil, {}
  local function push_small()
    if #small == PACKED then
      local block, empty = block_of(last, small)
      call('RPUSH', log, block, unpack(empty))
    else
      for _, payload in ipairs(small) do call('RPUSH', log, last .. ' ' .. payload) end
    end
    small = {}
  end
  for _ = 1, tonumber(following()) do
    local sequence = following()
    call('ZADD', order, sequence, following())
    call('HSET', line, 'r' .. sequence, following())
    local chain, payload = following(), following()
    if chain ~= last or #payload > SMALL or #small == PACKED then push_small() end
    last = chain
    if #payload > SMALL then
      call('RPUSH', log, chain .. ' ' .. payload)
    else
      small[#small + 1] = payload
    end
  end
  push_small()
  for _ = 1, tonumber(following()) do put_write(following(), following(), following()) end
  list_writes()
end
if at <= #ARGV then restore_line(KEYS[2], KEYS[3], KEYS[4], KEYS[5]) end
for n = 11, #KEYS, 4 do restore_line(KEYS[n], KEYS[n + 1], KEYS[n + 2], KEYS[n + 3]) end
local is_listed = is_thread()
call('HSET', thread, 'lines', lines, 'listed', is_listed and '1' or '0')
call('ZADD', ids, 0, name)
if is_listed then list_at(name, moment) end
settle_indexes()
local expires = call('HGET', thread, 'expires')
if expires then expire_at(name, expires) end
return {'done'}
