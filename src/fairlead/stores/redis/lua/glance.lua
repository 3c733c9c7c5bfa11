#!lua flags=no-writes
-- What a claim would find here, at a glance.
--   ARGV: now, level
--   answers now, 1 if it may find something, 2 if something is to be moved on, and else 0; and in how
--   many microseconds something falls due, -1 if nothing does
local now = clock(ARGV[1])
local soon = soonest(now, count_of(ARGV[2])) or -1
if soon == 0 or call('ZCARD', parked) > 0 then return { now, 2, soon } end
local waits = call('EXISTS', ready, lost) > 0
return { now, waits and call('HEXISTS', paused, 'since') == 0 and 1 or 0, soon }
