-- Versions that can be seen, without states, newest first. ARGV: 1 '' or '=' and an id to go on
-- below; 2 how many.
local store, is_here = found()
local row = is_here and call('HMGET', line, 'id', 'head', 'floor')
if is_here and is_damaged(row) then return {'damaged'} end
if not row or not row[2] then return {} end
local head, floor = row[2], row[3]
local below = '+inf'
if ARGV[1] ~= '' then
  local score = call('ZSCORE', order, string.sub(ARGV[1], 2))
  if not score then return {'missing'} end
  below = '(' .. score
end
local limit = tonumber(ARGV[2])
local ids = call('ZREVRANGEBYSCORE', order, below, floor, 'WITHSCORES', 'LIMIT', 0, limit)
if tonumber(head) < tonumber(floor) and #ids < 2 * limit
    and (below == '+inf' or tonumber(head) < tonumber(string.sub(below, 2))) then
  ids[#ids + 1] = id_at(head)
  ids[#ids + 1] = head
end
local rows = {}
for at = 1, #ids, 2 do
  local header = call('HGET', line, 'r' .. ids[at + 1])
  if header then
    local _, _, parent = told(header)
    rows[#rows + 1] = {ids[at + 1], ids[at], parent ~= '0' and id_at(parent) or '', header}
  end
end
return {store, row[1], rows}
