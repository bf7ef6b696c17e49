-- Payloads of the versions up to a sequence, each behind its chain, and the sequences in order.
-- ARGV: 1 the last one.
local _, is_here = found()
if not is_here then return {} end
if is_damaged() then return {'damaged'} end
local count = call('ZCOUNT', order, '-inf', ARGV[1])
if count == 0 then return {} end
local ids = call('ZRANGEBYSCORE', order, '-inf', ARGV[1], 'WITHSCORES')
return {ids, call('LRANGE', log, 0, count - 1)}
