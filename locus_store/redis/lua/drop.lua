-- Remove a thread with all it owns. ARGV: 1 name; 2 '1': these are all namespaces, though some are
-- damaged; then the revision of each namespace that was given, or nothing: whatever it is.
if not found() then return {'none'} end
if ARGV[2] == '' and not are_all_given(0) then return namespaces() end
local count = call('ZCARD', order)
if ARGV[3] and call('HGET', line, 'rev') ~= ARGV[3] then return {'changed'} end
for at = 11, #KEYS, 4 do
  local revision = ARGV[4 + (at - 11) / 4]
  if revision and call('HGET', KEYS[at], 'rev') ~= revision then return {'changed'} end
  count = count + call('ZCARD', KEYS[at + 1])
end
each_key(function(key) call('UNLINK', key) end)
forget(ARGV[1])
settle_indexes()
return {'done', count}
