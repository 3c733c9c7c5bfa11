#!lua flags=allow-oom
-- One bounded round of housekeeping.
--   ARGV: now, keep, tasks that live workers know (task -> version), how many of each at most
--   answers how many were promoted, brought back, expired, attempts forgotten, and the ids of
--   jobs forgotten
local now = clock(ARGV[1])
local before, most = now - ARGV[2], tonumber(ARGV[4])
local promoted = promote(now, most)
local brought_back = bring_back(cmsgpack.unpack(ARGV[3]), now, most)
local expired = expire(now, most)

local old = call('ZRANGEBYSCORE', ended, '-inf', '(' .. string.format('%.0f', before), 'LIMIT', 0, most)
many('ZREM', ended, old)
many('HDEL', bodies, old)
many('HDEL', ends, old)
many('HDEL', errors, old)

-- Batches are in order, unless the clock went back: so look past a few that are young. Their
-- numbers must not change, so one that is old among younger ones is emptied.
local lines, at, young, gone = 0, 0, 0, 0
while lines < most and young < 10 do
  local batch = call('LINDEX', log, at)
  if not batch then break end
  if tonumber(string.sub(batch, 1, 16)) < before then
    lines = lines + #cmsgpack.unpack(string.sub(batch, 17))
    call('LSET', log, at, string.sub(batch, 1, 16) .. cmsgpack.pack({}))
  else
    young = young + 1
  end
  at = at + 1
  if young == 0 then gone = at end
end
if gone > 0 then
  call('LTRIM', log, gone, -1)
  call('HINCRBY', settings, 'log_start', gone)
end
return { promoted, brought_back, expired, lines, old }
