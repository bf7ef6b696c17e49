-- The head of a thread's root, without its state. The same in shape as one row of history.
local store = found()
local row = store and call('HMGET', line, 'id', 'head')
if store and is_damaged() then return {'damaged'} end
if not row or not row[2] then return {} end
local header = call('HGET', line, 'r' .. row[2])
if not header then return {} end
local _, _, parent = told(header)
return {store, row[1], {{row[2], id_at(row[2]), parent ~= '0' and id_at(parent) or '', header}}}
