-- A plain append: most saves. What it refuses is for the whole rules, and nothing was written.
-- ARGV: 1 '1': a thread may be made, 'no': it must exist; 2 payload; 3 metadata and labels; 4 the
-- rest in one text, for a client writes that faster than many, with a NUL behind each. The answer is
-- such a text too: the store, the line and the version's number, with blanks between them.
local may_create, payload, rest = ARGV[1], ARGV[2], ARGV[3]
local told = {}
for it in string.gmatch(ARGV[4], '([^%z]*)%z') do told[#told + 1] = it end
local name, namespace, its_store, new_id, its_line, expected, expected_digest, is_free, is_root,
  basis, basis_digest, checkpoint, digest, added, most, writer, run, keep_last, most_hidden, ttl,
  slack = unpack(told)

-- Put the payload at the end of the log. alone: of its chain's, how many at the end are small and in
-- places of their own. Answers how many are now.
local function append(chain, alone)
  call('RPUSH', log, chain .. ' ' .. payload)
  if #payload > SMALL then return 0 end
  if alone + 1 < PACKED then return alone + 1 end
  local payloads, behind = {}, #chain + 1
  for at, it in ipairs(call('LRANGE', log, -PACKED, -1)) do
    if string.sub(it, 1, behind) ~= chain .. ' ' then return 0 end
    payloads[at] = string.sub(it, behind + 1)
  end
  local block, empty = block_of(chain, payloads)
  call('LTRIM', log, 0, -PACKED)
  call('LSET', log, -1, block)
  call('RPUSH', log, unpack(empty))
  return 0
end

local known, known_digest = expected, expected_digest
if basis ~= '' then known, known_digest = basis, basis_digest end
local there = opened(namespace)
local is_here = there and there.is_here
local row = is_here and call('HMGET', line, 'id', 'head', 'chain', 'bytes', 'floor', 'last', 'rev',
  'writer', 'run', 'r' .. known, 'alone') or {}
local id, head = row[1], row[2]
if is_here and is_damaged(row) then return {'rules'} end
local is_known = head and id == its_line and head == known
  and string.sub(row[10] or '', 1, 32) == known_digest
local is_expected = is_known and head == expected and known_digest == expected_digest
local is_own = (writer ~= '' and row[8] == writer)
  or (writer == '' and run ~= '' and row[9] == run)
if not head then
  if basis ~= '' or (is_free ~= '1' and expected ~= '') then return {'rules'} end
else
  if is_root == '1' then return {'rules'} end
  if its_line ~= '' and id ~= its_line then return {'rules'} end  -- a state from elsewhere
  if is_free ~= '1' and not is_own and not is_expected then return {'rules'} end
  if basis ~= '' then
    if not is_known or not row[3] then return {'rules'} end
    if tonumber(row[4]) > tonumber(most) then return {'rules'} end
  end
end
if is_missing(there, may_create) then return {'rules'} end
local keep, time = tonumber(keep_last), tonumber(ttl)
if keep and head then  -- what is hidden goes in batches, by the rules
  local hidden = call('ZCARD', order) + 1 - keep
  if hidden > tonumber(most_hidden) then return {'rules'} end
end
if time and there and not are_all_given(is_here and 0 or 1) then return namespaces() end
if not there and may_create ~= '1' then return {'create'} end

there = there or made(name, its_store)
id = id or opened_line(there, namespace, new_id)
if not head then call('HSET', thread, 'ns|' .. namespace, '1') end
local sequence = whole(tonumber(row[6] or '0') + 1)
if call('ZADD', order, 'NX', sequence, checkpoint) == 0 then return {'rules'} end
local chain = basis ~= '' and row[3] or sequence
local bytes = (basis ~= '' and tonumber(row[4]) or 0) + tonumber(added)
local alone = append(chain, basis ~= '' and tonumber(row[11] or '0') or 0)
call('HSET', line, 'r' .. sequence, header(digest, chain, head or '0', whole(now), rest),
  'head', sequence, 'chain', chain, 'bytes', whole(bytes), 'last', sequence,
  'rev', whole(tonumber(row[7] or '0') + 1), 'alone', alone)
if writer ~= (row[8] or '') or run ~= (row[9] or '') then
  if writer ~= '' then call('HSET', line, 'writer', writer) else call('HDEL', line, 'writer') end
  if run ~= '' then call('HSET', line, 'run', run) else call('HDEL', line, 'run') end
end
if keep then
  local floor = call('ZREVRANGE', order, keep - 1, keep - 1, 'WITHSCORES')[2]
  if floor and tonumber(floor) > tonumber(row[5] or '0') then call('HSET', line, 'floor', floor) end
end
touch(name, there, time, tonumber(slack))
return there.store .. ' ' .. id .. ' ' .. sequence
