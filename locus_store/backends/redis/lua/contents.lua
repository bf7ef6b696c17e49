-- What the states of versions are made of, and their pending writes. ARGV: ids of versions. The
-- line's id; ids and sequences from the beginning of the first chain to the last version; payloads
-- of those, each behind its chain, and perhaps more of the last block; a list of writes for each.
local _, is_here = found()
if not is_here then return {} end
if is_damaged() then return {'damaged'} end
local first, last, each = math.huge, 0, {}
for at, checkpoint in ipairs(ARGV) do
  local sequence = call('ZSCORE', order, checkpoint)
  local header = sequence and call('HGET', line, 'r' .. sequence)
  if header then
    local _, chain = told(header)
    first, last = math.min(first, tonumber(chain)), math.max(last, tonumber(sequence))
  end
  each[at] = written(checkpoint)
end
local ids, payloads = {}, {}
if last > 0 then
  local begin = call('ZCOUNT', order, '-inf', '(' .. whole(first))
  ids = call('ZRANGEBYSCORE', order, whole(first), whole(last), 'WITHSCORES')
  payloads = call('LRANGE', log, begin, begin + #ids / 2 - 1)
end
return {call('HGET', line, 'id'), ids, payloads, each}
