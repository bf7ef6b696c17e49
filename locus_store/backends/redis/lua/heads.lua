-- The head of a thread's root, without its state. The same in shape as one row of history.
local store, is_here = found()
local row = is_here and call('HMGET', line, 'id', 'head')
if is_here and is_damaged(row) then return {'damaged'} end
if not row or not row[2] then return {} end
local header = call('HGET', line, 'r' .. row[2])
if not header then return {} end
local _, _, parent = told(header)
return {store, row[1], {{row[2], id_at(row[2]), parent ~= '0' and id_at(parent) or '', header}}}
