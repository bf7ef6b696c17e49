-- The namespaces in which a thread has a version.
if not found() then return {} end
local names = {}
local row = call('HGETALL', thread)
for at = 1, #row, 2 do
  if string.sub(row[at], 1, 3) == 'ns|' and row[at + 1] == '1' then
    names[#names + 1] = string.sub(row[at], 4)
  end
end
return names
