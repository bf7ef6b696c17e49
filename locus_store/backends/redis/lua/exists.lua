-- Whether a thread exists: '1', or '0' where only pending writes are stored.
local _, is_here = found()
if is_here and is_damaged() then return {'damaged'} end
return call('HGET', thread, 'listed') or '0'
