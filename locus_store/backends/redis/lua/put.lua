-- Pending writes. ARGV: 1 to 5 name, namespace, store, new line id, may create ('no': the thread must
-- exist); 6 checkpoint; 7, 8, 9 line, sequence and digest of the version that frames are against, or
-- ''; 10 '1': the checkpoint must be there; 11, 12 ttl and slack ('': the time to live stays); 13 how
-- many fields the caller has seen, '' where it does not ask; they; and field and value of each write.
local checkpoint = ARGV[6]
local row = opened(ARGV[2])
local is_here = row and row.is_here
if ARGV[10] == '1' and not (is_here and call('ZSCORE', order, checkpoint)) then
  if is_here and is_damaged() then return {'rules'} end
  return {'gone'}
end
if ARGV[7] ~= '' then
  local sequence = is_here and call('ZSCORE', order, checkpoint)
  if not sequence or sequence ~= ARGV[8] or call('HGET', line, 'id') ~= ARGV[7] then return {'no'} end
  if string.sub(call('HGET', line, 'r' .. sequence) or '', 1, 32) ~= ARGV[9] then return {'no'} end
end
local first = 14
if ARGV[13] ~= '' then
  first = 14 + tonumber(ARGV[13])
  local seen = {}
  for at = 14, first - 1 do seen[ARGV[at]] = true end
  local there = is_here and written(checkpoint) or {}
  for at = 1, #there, 2 do
    if not seen[there[at]] then return {'rules'} end
  end
end
if is_here and is_damaged() then return {'rules'} end
if is_missing(row, ARGV[5]) then return {'rules'} end
if not row and ARGV[5] ~= '1' then return {'create'} end
local ttl, until_then = tonumber(ARGV[11]), nil
if ttl then
  local expires = math.floor(now / 1000 + ttl)
  local is_late = row and row.expires and tonumber(row.expires) < expires
  if is_late and not are_all_given(is_here and 0 or 1) then return namespaces() end
  if is_late or not row then until_then = whole(expires + tonumber(ARGV[12])) end
end
row = row or made(ARGV[1], ARGV[3])
opened_line(row, ARGV[2], ARGV[4])
for at = first, #ARGV, 2 do
  local is_special = string.find(ARGV[at], '%z%-')
  if is_special or call('HEXISTS', writes, checkpoint .. '\0' .. ARGV[at]) == 0 then
    put_write(checkpoint, ARGV[at], whole(now) .. ARGV[at + 1])
  end
end
list_writes()
call('HINCRBY', line, 'rev', 1)
if until_then then
  expire_at(ARGV[1], until_then)
elseif row.expires then
  for at = 1, 6 do call('PEXPIREAT', KEYS[at], row.expires) end
end
return {'done'}
