-- All that is stored of a thread. ARGV: 1 '1': with payloads and pending writes. Its row, messages,
-- and of each namespace that was given: the line, its order, its log and its pending writes.
if not found() then return {} end
if not are_all_given(0) then return namespaces() end
local is_whole = ARGV[1] == '1'
local each = {}
for at = 7, #KEYS, 4 do
  local first = at == 7 and 2 or at
  each[#each + 1] = {
    call('HGETALL', KEYS[first]), call('ZRANGE', KEYS[first + 1], 0, -1, 'WITHSCORES'),
    is_whole and call('LRANGE', KEYS[first + 2], 0, -1) or {},
    is_whole and call('HGETALL', KEYS[first + 3]) or {}
  }
end
return {'whole', call('HGETALL', thread), call('LRANGE', messages, 0, -1), each}
