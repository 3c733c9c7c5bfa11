#!lua flags=no-writes
-- Check some entries of jobs of this queue, as they are at one moment.
--   ARGV: the part whose members are checked, cursor, level
--   answers the cursor to go on with, and of each member that is wrong its name and what is wrong
local is_hash, level = ARGV[1] == 'entries', count_of(ARGV[3])
return check.page(is_hash and 'HSCAN' or 'ZSCAN', is_hash and entries or owned, ARGV[2], function(name)
  return check.owned(name, level)
end)
