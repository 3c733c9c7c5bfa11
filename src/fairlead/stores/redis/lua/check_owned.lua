#!lua flags=no-writes
-- Check some entries of jobs of this queue, as they are at one moment.
--   ARGV: the part whose members are checked, cursor
--   answers the cursor to go on with, and of each member that is wrong its name and what is wrong
return check.page(ARGV[1] == 'entries' and 'HSCAN' or 'ZSCAN', ARGV[1] == 'entries' and entries or owned, ARGV[2], check.owned)
