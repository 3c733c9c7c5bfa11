#!lua flags=allow-oom
-- Cancel waiting jobs at once, and mark running ones, if they are in one of these states and not above the level.
--   ARGV: now, ids, level, states, reason, who does it (see write_act), channel, word to tell there
--   answers the ids of those that were cancelled or marked, and how many it looked at before it had read enough
local now, level, states, reason = clock(ARGV[1]), count_of(ARGV[3]), set_of(ARGV[4]), ARGV[5]
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('cancel', ARGV[2], ARGV[4], ARGV[5])
local past, missed = past_of(ARGV[6], mark)
if past then return { past_ids(ids, past, missed), past } end
local touched, looked, left = {}, 0, MOST_READ
for _, id in ipairs(ids) do
  if left < 0 then break end
  local standing, bytes = live(id)
  looked, left = looked + 1, left - bytes
  if standing and not standing[STANDING.CANCEL] and standing[STANDING.LEVEL] <= level
      and states[standing[STANDING.LEASE_UNTIL] > 0 and 'running' or 'waiting'] then
    if standing[STANDING.LEASE_UNTIL] > 0 then
      standing[STANDING.CANCEL] = reason
      write_standing(id, standing)
    else
      displace(id, standing)
      call('ZREM', expiring, id)
      leave_one(id, standing, 'cancelled', now, reason, nil)
    end
    touched[#touched + 1] = id
  end
end
write_act(ARGV[6], #touched, now, nil, mark, looked, missed_in(ids, looked, touched))
if #touched > 0 then tell(ARGV[7], ARGV[8]) end
return { touched, looked }
