-- Give a thread that has a time to live a new one, where that is longer than what is left of it.
-- ARGV: 1 name; 2 milliseconds; 3 how much later it may expire.
local row = opened('')
if not row or not row.expires then return {'none'} end
local expires = math.floor(now / 1000 + tonumber(ARGV[2]))
if tonumber(row.expires) >= expires then return {'none'} end
if not are_all_given(0) then return namespaces() end
expire_at(ARGV[1], whole(expires + tonumber(ARGV[3])))
return {'done'}
