-- A thread's row, and a namespace whole but for payloads that nobody asked for. ARGV: 1 '': no
-- payloads; 'all'; or those of a chain and what is newer; 2 '1': pending writes, '': none.
local store, is_here = found()
if not store then return {} end
if not is_here then return {call('HGETALL', thread), {}, {}, -1, {}, {}} end
if is_damaged() then return {'damaged'} end
local of_line = call('HGETALL', line)
local first = ARGV[1] == '' and -1 or 0
if ARGV[1] ~= '' and ARGV[1] ~= 'all' then
  first = call('ZCOUNT', order, '-inf', '(' .. ARGV[1])
end
return {
  call('HGETALL', thread), of_line, call('ZRANGE', order, 0, -1, 'WITHSCORES'),
  first, first < 0 and {} or call('LRANGE', log, first, -1),
  ARGV[2] == '1' and call('HGETALL', writes) or {}
}
