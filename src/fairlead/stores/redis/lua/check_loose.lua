#!lua flags=no-writes
-- Check some entries of this slot, or some marks of them, as they are at one moment.
--   ARGV: the part whose members are checked, cursor
--   answers the cursor to go on with, and of each member that is wrong its name and what is wrong
local keys = { loose = loose, listed = listed, awaited = awaited, passing = passing }
local part = ARGV[1]
return check.page(part == 'loose' and 'HSCAN' or 'ZSCAN', keys[part], ARGV[2], function(member)
  return check.loose(part, member)
end)
