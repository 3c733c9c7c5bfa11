#!lua flags=allow-oom
-- Write a batch of the attempt log anew, if it still is what it was.
--   ARGV: its number, what it was, what it is to be
--   answers whether it did
local at = count_of(ARGV[1]) - gone_before()
if at < 0 or call('LINDEX', log, at) ~= ARGV[2] then return 0 end
call('LSET', log, at, ARGV[3])
return 1
