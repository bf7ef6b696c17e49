-- A version as it is stored. ARGV: 1 '' or '=' and its id; 2, 3, 4 line, sequence and digest of the
-- version that the caller has: if it is in the chain, only payloads behind it are told; 5 '1': with
-- its pending writes. What is told of it is one text, for a client reads that faster than many,
-- with a NUL behind each: store, line, head, sequence, id, parent ('': none), the head's digest,
-- '1' if the payloads continue the caller's version, how many of them to leave out at the
-- beginning, how many there are then, header.

-- Of elements of the log those of a chain, as they are, and how many versions have their places.
local function of_chain(chain, elements)
  local some, count, is_its = {}, 0, false
  for _, it in ipairs(elements) do
    if it ~= '' then
      is_its = string.match(it, '^%+?(%d+)') == chain
      if is_its then some[#some + 1] = it end
    end
    if is_its then count = count + 1 end
  end
  return some, count
end

local store, is_here = found()
local row = is_here and call('HMGET', line, 'id', 'head', 'floor')
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
local records, skip, count = {}, 0, 0
local basis = ''
if row[1] == ARGV[2] and tonumber(ARGV[3]) <= tonumber(sequence) then
  local known = call('HGET', line, 'r' .. ARGV[3])
  if known then
    local its_digest, its_chain = told(known)
    if its_digest == ARGV[4] and its_chain == chain then basis = '1' end
  end
end
if basis == '' or sequence ~= ARGV[3] then
  local first = call('ZCOUNT', order, '-inf', basis == '' and '(' .. chain or ARGV[3])
  local last = call('ZCOUNT', order, '-inf', '(' .. sequence)
  while basis ~= '' and first > 0 and call('LRANGE', log, first, first)[1] == '' do  -- its payload stands in a block before
    first, skip = first - 1, skip + 1
  end
  records, count = of_chain(chain, call('LRANGE', log, first, last))
end
local of_parent = parent ~= '0' and id_at(parent) or ''
return {
  table.concat(
    {store, row[1], head, sequence, id, of_parent, string.sub(of_head, 1, 32), basis, skip, count,
      header}, '\0'),
  records, ARGV[5] == '1' and written(id) or {}
}
