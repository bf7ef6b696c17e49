-- Pending writes. ARGV: ids of checkpoints. A list for each.
local _, is_here = found()
if not is_here then return {} end
if is_damaged() then return {'damaged'} end
local each = {}
for at, checkpoint in ipairs(ARGV) do each[at] = written(checkpoint) end
return each
