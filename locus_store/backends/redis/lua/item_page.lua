-- Live items by name. ARGV: 1, 2 first and last name, as ZRANGEBYLEX takes them; 3, 4 how many, and
-- how many bytes. Name, end of its time and bytes of each, joined; and where to go on, '' at the end.
local limit, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = walk(ARGV[1], ARGV[2], 10000, function(name)
  local packed, expires = live(name)
  return packed and add(joined(name, expires, packed), limit, most_bytes)
end)
return {table.concat(page), at}
