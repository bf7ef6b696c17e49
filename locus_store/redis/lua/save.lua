-- A plain append: most saves. What it refuses is for the whole rules, and nothing was written.
-- ARGV: see saving.appending.
local a = {}
for at, name in ipairs({
  'name', 'namespace', 'store', 'new_id', 'may_create', 'line', 'expected', 'expected_digest',
  'is_free', 'is_root', 'basis', 'basis_digest', 'checkpoint', 'digest', 'payload', 'added', 'most',
  'rest', 'writer', 'run', 'keep_last', 'most_hidden', 'ttl', 'slack', 'assumed'
}) do a[name] = ARGV[at] end

local row = call('HMGET', line, 'id', 'head', 'chain', 'bytes', 'floor', 'last', 'writer', 'run')
local store = found()
if not store then row = {} end
if store and a.assumed ~= '' and a.assumed ~= store then return {'rules'} end
if store and is_damaged(row) then return {'rules'} end
local id, head = row[1], row[2]
local is_own = (a.writer ~= '' and row[7] == a.writer)
  or (a.writer == '' and a.run ~= '' and row[8] == a.run)
if not head then
  if a.basis ~= '' or (a.is_free ~= '1' and a.expected ~= '') then return {'rules'} end
else
  if a.is_root == '1' or call('ZSCORE', order, a.checkpoint) then return {'rules'} end
  local digest = string.sub(call('HGET', line, 'r' .. head) or '', 1, 32)
  if a.is_free ~= '1' and not is_own then
    if id ~= a.line or head ~= a.expected or digest ~= a.expected_digest then return {'rules'} end
  end
  if a.basis ~= '' then
    if id ~= a.line or head ~= a.basis or digest ~= a.basis_digest or not row[3] then
      return {'rules'}
    end
    if tonumber(row[4]) > tonumber(a.most) then return {'rules'} end
  end
end
local keep = tonumber(a.keep_last)
if keep and head then  -- what is hidden goes in batches, by the rules
  local hidden = call('ZCARD', order) + 1 - keep
  if hidden > tonumber(a.most_hidden) then return {'rules'} end
end
local ttl = tonumber(a.ttl)
if ttl and store and not are_all_given(unmade_line()) then return namespaces() end

local of_thread = opened(a.name, a.store, a.may_create == '1')
if not of_thread then return {'create'} end
id = id or opened_line(of_thread, a.namespace, a.new_id)
local sequence = whole(tonumber(row[6] or '0') + 1)
local chain = a.basis ~= '' and row[3] or sequence
local bytes = (a.basis ~= '' and tonumber(row[4]) or 0) + tonumber(a.added)
put_header(sequence, a.digest, chain, head or '0', whole(now), a.rest)
call('ZADD', order, sequence, a.checkpoint)
call('RPUSH', log, chain .. ' ' .. a.payload)
call('HSET', line, 'head', sequence, 'chain', chain, 'bytes', whole(bytes), 'last', sequence)
call('HINCRBY', line, 'rev', 1)
if a.writer ~= (row[7] or '') or a.run ~= (row[8] or '') then
  if a.writer ~= '' then call('HSET', line, 'writer', a.writer) else call('HDEL', line, 'writer') end
  if a.run ~= '' then call('HSET', line, 'run', a.run) else call('HDEL', line, 'run') end
end
if keep then
  local floor = call('ZREVRANGE', order, keep - 1, keep - 1, 'WITHSCORES')[2]
  if floor and tonumber(floor) > tonumber(row[5] or '0') then call('HSET', line, 'floor', floor) end
end
touch(a.name, of_thread, a.namespace == '' or of_thread.is_listed, ttl, tonumber(a.slack))
return {'done', of_thread.store, id, sequence}
