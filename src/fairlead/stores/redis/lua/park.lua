#!lua flags=allow-oom
-- Park jobs that no live worker knows, outside the order.
--   ARGV: now, a list of ids for each task and version, ids of jobs whose names cannot be read, which are
--         put aside, and how long options may be to be told
--   answers for each of those lists how many were parked, the first of them, or '', and its options, or ''
local now, longest = clock(ARGV[1]), count_of(ARGV[4])

-- The run of a job that waits or was lost; nil if somebody has it, or it is parked or gone by now.
local function free_run(id)
  local run = live_run(id)
  return run and not run[PARKED] and run[LEASE_UNTIL] <= now and run or nil
end

for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  local run = free_run(id)
  if run then
    displace(id, run)
    put_aside(id, run, now)
  end
end

local answer, waiting, written, members = {}, {}, {}, {}
for nth, ids in ipairs(cmsgpack.unpack(ARGV[2])) do
  local count, first, body = 0, '', nil
  for _, id in ipairs(ids) do
    local run = free_run(id)
    if run then
      if run[LEASE_UNTIL] > 0 then displace(id, run) else waiting[#waiting + 1] = id end
      run[PARKED] = true
      written[#written + 1] = id
      written[#written + 1] = packed_run(run)
      members[#members + 1] = '0'
      members[#members + 1] = unknown_member(id, run)
      count = count + 1
      if count == 1 then first, body = id, body_of(call('HGET', bodies, id)) end
    end
  end
  local options = body and body[OPTIONS] or ''
  answer[nth] = { count, first, #options <= longest and options or '' }
end
many('ZREM', ready, waiting)
many('ZREM', due, waiting)
many('HSET', runs, written)
many('ZADD', unknown, members)
return answer
