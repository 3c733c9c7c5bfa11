#!lua flags=allow-oom
-- Cancel waiting jobs at once, and mark running ones, if they are in one of these states.
--   ARGV: now, ids, states, reason, who does it (see write_act), channel, word to tell there
--   answers the ids of those that were cancelled or marked, how many it looked at before it had read
--   enough, and what is known of each after it
local now, states, reason = clock(ARGV[1]), set_of(ARGV[3]), ARGV[4]
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('cancel', ARGV[2], ARGV[3], ARGV[4])
local touched, answers, looked, left = {}, {}, 0, MOST_READ
local past, missed = past_of(ARGV[5], mark)
if past then
  for _, id in ipairs(past_ids(ids, past, missed)) do
    if call('HEXISTS', bodies, id) == 1 then
      touched[#touched + 1] = id
      answers[#answers + 1] = kept(id)
    end
  end
  return { touched, past, answers }
end
for _, id in ipairs(ids) do
  if left < 0 then break end
  local run, bytes = live_run(id)
  looked, left = looked + 1, left - bytes
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
    left = left - size_of(answers[#answers])
  end
end
write_act(ARGV[5], #touched, now, nil, mark, looked, missed_in(ids, looked, touched))
if #touched > 0 then tell(ARGV[6], ARGV[7]) end
return { touched, looked, answers }
