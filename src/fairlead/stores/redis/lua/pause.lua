#!lua flags=allow-oom
-- Let no further job of this queue start, or let them start again.
--   ARGV: now, 1 to pause and 0 to resume, who does it (see write_act), channel, word to tell there
--   answers whether that is new
local now, mark = clock(ARGV[1]), mark_of('pause', ARGV[2])
local past, missed = past_of(ARGV[3], mark)
if past then return missed[0] and 0 or 1 end
local changed
if ARGV[2] == '1' then
  changed = call('HSETNX', paused, 'since', string.format('%.0f', now))
else
  changed = call('HDEL', paused, 'since')
end
write_act(ARGV[3], changed, now, nil, mark, 1, changed == 1 and '' or '0')
if changed == 1 then tell(ARGV[4], ARGV[5]) end
return changed
