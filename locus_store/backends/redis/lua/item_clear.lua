-- Remove items by name. ARGV: 1, 2 see item_page; 3 how many at most. How many were live; and where
-- to go on, '' at the end.
local gone, lived = {}, 0
local at = walk(ARGV[1], ARGV[2], tonumber(ARGV[3]), function(name)
  gone[#gone + 1] = name
  if not is_over(name) then lived = lived + 1 end
end)
forget(gone)
return {lived, at}
