-- Namespaces that have live items, in order. ARGV: 1, 2 see item_page; 3 how many. They, as names
-- begin with them; and where to go on, '' at the end.
local low, limit = ARGV[1], tonumber(ARGV[3])
for _ = 1, 10000 do
  local name = call('ZRANGEBYLEX', names, low, ARGV[2], 'LIMIT', 0, 1)[1]
  if not name then return {page, ''} end
  if is_over(name) then
    low = '(' .. name
  else
    local last = 0  -- that of the root has no segment
    if string.byte(name) ~= 0 then last = string.find(name, '\0\0', 1, true) end
    local namespace = string.sub(name, 1, last)
    low = '(' .. namespace .. '\0\255'  -- behind all of its keys, before what is below it
    if add(namespace, limit, math.huge) then break end
  end
end
return {page, string.sub(low, 2)}
