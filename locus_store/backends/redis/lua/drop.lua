-- Remove a thread with all it owns. ARGV: 1 name; 2 '1': though it lost some of its keys, '': only
-- if it is whole; then the names of the namespaces that were given, of a whole one the revision of
-- each, or nothing: whatever it is. Answers how many versions it had, and whether it existed.
local function are_named()
  local named = {}
  for at = 3, #ARGV do named[ARGV[at]] = true end
  local names = namespaces()
  for at = 2, #names do
    if not named[names[at]] then return false end
  end
  return true
end
if not found() then return {'none'} end
local insists = ARGV[2] == '1'
if insists and not are_named() then return namespaces() end
if not insists and not are_all_given(0) then return namespaces() end
-- Some of them may be lost.
local function versions(of_line, of_order, of_log)
  return math.max(call('HEXISTS', of_line, 'head'), call('ZCARD', of_order), call('LLEN', of_log))
end
local count = versions(line, order, log)
if not insists and ARGV[3] and call('HGET', line, 'rev') ~= ARGV[3] then return {'changed'} end
for at = 11, #KEYS, 4 do
  local revision = not insists and ARGV[4 + (at - 11) / 4]
  if revision and call('HGET', KEYS[at], 'rev') ~= revision then return {'changed'} end
  count = count + versions(KEYS[at], KEYS[at + 1], KEYS[at + 2])
end
local existed = count > 0 or is_thread()
each_key(function(key) call('UNLINK', key) end)
forget(ARGV[1])
settle_indexes()
return {'done', count, existed and 1 or 0}
