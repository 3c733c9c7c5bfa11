#!lua flags=allow-oom
-- Park jobs that no live worker knows, outside the order.
--   ARGV: now, ids, ids of jobs whose names cannot be read, which are put aside
--   answers id and body of those that were parked
local now = clock(ARGV[1])
local parked = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  local run = live_run(id)
  if run and not run[PARKED] and run[LEASE_UNTIL] <= now then
    displace(id, run)
    put_aside(id, run, now)
  end
end
for _, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  local run = live_run(id)
  if run and not run[PARKED] and run[LEASE_UNTIL] <= now then
    displace(id, run)
    run[PARKED] = true
    write_run(id, run)
    call('ZADD', unknown, 0, unknown_member(id, run))
    parked[#parked + 1] = id
    parked[#parked + 1] = call('HGET', bodies, id)
  end
end
return parked
