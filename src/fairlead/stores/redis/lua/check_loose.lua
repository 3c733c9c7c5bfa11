#!lua flags=no-writes
-- Check some entries of this slot, or some marks of them, as they are at one moment.
--   ARGV: the part whose members are checked, cursor
--   answers the cursor to go on with, and of each member that is wrong its name and what is wrong
local keys = { loose = loose, listed = listed, awaited = awaited, passing = passing }
local command = ARGV[1] == 'loose' and 'HSCAN' or 'ZSCAN'
local page = call(command, keys[ARGV[1]], ARGV[2], 'COUNT', 10)
local found = {}
for n = 1, #page[2], 2 do
  local problem = check.loose(ARGV[1], page[2][n])
  if problem then
    found[#found + 1] = page[2][n]
    found[#found + 1] = problem
  end
end
return { page[1], found }
