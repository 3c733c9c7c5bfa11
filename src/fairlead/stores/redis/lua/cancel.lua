#!lua flags=allow-oom
-- Cancel waiting jobs at once, and mark running ones, if they are in one of these states.
--   ARGV: now, ids, states, reason, who does it (see write_act), channel, word to tell there
--   answers the ids of those that were cancelled or marked, and what is known of each after it
local now, states, reason = clock(ARGV[1]), set_of(ARGV[3]), ARGV[4]
local touched, answers = {}, {}
for _, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  local run = live_run(id)
  if run and not run[CANCEL] and states[run[LEASE_UNTIL] > 0 and 'running' or 'waiting'] then
    if run[LEASE_UNTIL] > 0 then
      run[CANCEL] = reason
      write_run(id, run)
    else
      displace(id, run)
      call('HDEL', runs, id)
      call('ZREM', expiring, id)
      finish(id, run, 'cancelled', now, reason, nil)
    end
    touched[#touched + 1] = id
    answers[#answers + 1] = kept(id)
  end
end
write_act(ARGV[5], #touched, now, nil)
if #touched > 0 then tell(ARGV[6], ARGV[7]) end
return { touched, answers }
