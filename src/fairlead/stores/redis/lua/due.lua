#!lua flags=no-writes
-- When the next parked job falls due.
--   ARGV: now
--   answers now, and that time if there is one; what is overdue already waits for a claim
local now = clock(ARGV[1])
local past = '(' .. string.format('%.0f', now)
local found = call('ZRANGEBYSCORE', due, past, LATEST, 'WITHSCORES', 'LIMIT', 0, 1)
return { now, found[2] }
