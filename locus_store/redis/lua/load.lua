-- A version as it is stored. ARGV: 1 '' or '=' and its id; 2, 3, 4 line, sequence and digest of the
-- head that the caller has, whose payloads it does not want; 5 '1': with its pending writes. What is
-- told of it is one text, for a client reads that faster than many, with a NUL behind each: store,
-- line, head, sequence, id, parent ('': none), the head's digest, header. So are its records: their
-- sizes, with blanks between them, and they themselves one behind another, in blocks.
local BLOCK = 1048576  -- bytes, but for one record that is larger

local function in_blocks(records)
  local blocks, sizes, first, size = {}, {}, 1, 0
  for at, record in ipairs(records) do
    sizes[at] = #record
    size = size + #record
    if size >= BLOCK or at == #records then
      blocks[#blocks + 1] = table.concat(records, '', first, at)
      first, size = at + 1, 0
    end
  end
  return blocks, table.concat(sizes, ' ')
end

local store = found()
local row = store and call('HMGET', line, 'id', 'head', 'floor')
if store and is_damaged(row) then return {'damaged'} end
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
local records = {}  -- as they are: cut here, each would be copied
local is_known = row[1] == ARGV[2] and sequence == ARGV[3] and digest == ARGV[4]
if not is_known then
  local first = call('ZCOUNT', order, '-inf', '(' .. chain)
  local last = call('ZCOUNT', order, '-inf', '(' .. sequence)
  local mark = chain .. ' '
  for _, record in ipairs(call('LRANGE', log, first, last)) do
    if string.sub(record, 1, #mark) == mark then
      records[#records + 1] = record
    end
  end
end
local of_parent = parent ~= '0' and id_at(parent) or ''
local blocks, sizes = in_blocks(records)
return {
  table.concat(
    {store, row[1], head, sequence, id, of_parent, string.sub(of_head, 1, 32), header}, '\0'),
  sizes, blocks, ARGV[5] == '1' and written(id) or {}
}
