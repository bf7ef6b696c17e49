-- A version as it is stored. ARGV: 1 '' or '=' and its id; 2, 3, 4 line, sequence and digest of the
-- head that the caller has, whose payloads it does not want; 5 '1': with its pending writes. What is
-- told of it is one text, for a client reads that faster than many, with a NUL behind each: store,
-- line, head, sequence, id, parent ('': none), the head's digest, header.

-- The records that begin with a mark; where all of them do, they are not copied.
local function marked(records, mark)
  local sub, size, some = string.sub, #mark, nil
  for at = 1, #records do
    local is_marked = sub(records[at], 1, size) == mark
    if not is_marked and not some then
      some = {}
      for before = 1, at - 1 do some[before] = records[before] end
    elseif is_marked and some then
      some[#some + 1] = records[at]
    end
  end
  return some or records
end

local store, is_here = found()
local row = is_here and call('HMGET', line, 'id', 'head', 'floor', 'unmixed')
if is_here and is_damaged(row) then return {'damaged'} end
if not row or not row[2] then return {} end
local head = row[2]
local sequence = head
if ARGV[1] ~= '' then
  local checkpoint = string.sub(ARGV[1], 2)
  sequence = call('ZSCORE', order, checkpoint)
  if not sequence then return {} end
  if tonumber(sequence) < tonumber(row[3]) and sequence ~= head then return {} end
end
local header = call('HGET', line, 'r' .. sequence)
local of_head = sequence == head and header or call('HGET', line, 'r' .. head)
local id = id_at(sequence)
if not header or not of_head or not id then return {head} end
local digest, chain, parent = told(header)
local records = {}  -- as they are, behind their chain: cut here, each would be copied
local is_known = row[1] == ARGV[2] and sequence == ARGV[3] and digest == ARGV[4]
if not is_known then
  local first = call('ZCOUNT', order, '-inf', '(' .. chain)
  local last = call('ZCOUNT', order, '-inf', '(' .. sequence)
  records = call('LRANGE', log, first, last)
  if sequence ~= head or chain ~= row[4] then records = marked(records, chain .. ' ') end
end
local of_parent = parent ~= '0' and id_at(parent) or ''
return {
  table.concat(
    {store, row[1], head, sequence, id, of_parent, string.sub(of_head, 1, 32), header}, '\0'),
  records, ARGV[5] == '1' and written(id) or {}
}
