#!lua flags=allow-oom
-- Park jobs that no live worker knows, outside the order.
--   ARGV: now, [task, version, ids] of each kind of them, ids of jobs whose names cannot be read, which are
--         put aside, and how long options may be to be told
--   answers for each kind how many were parked, the first of them, or '', and its options, or ''
local now, longest = clock(ARGV[1]), count_of(ARGV[4])

-- How a job stands that waits or was lost; nil if somebody has it, or it is parked or gone by now.
local function free(id)
  local standing = live(id)
  local is_free = standing and not standing[STANDING.GATE] and standing[STANDING.LEASE_UNTIL] <= now
  return is_free and standing or nil
end

for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  local standing = free(id)
  if standing then
    displace(id, standing)
    put_aside(id, standing, now)
  end
end

local answer = {}
for nth, kind in ipairs(cmsgpack.unpack(ARGV[2])) do
  local task, version, ids = unpack(kind, 1, 3)
  local jobs, count, first, body = {}, 0, '', nil
  for _, id in ipairs(ids) do
    local standing = not jobs[id] and free(id)
    if standing then
      jobs[id], count = standing, count + 1
      if count == 1 then first, body = id, body_of(call('HGET', bodies, id)) end
    end
  end
  park(jobs, UNKNOWN, task_key(task, count_of(version, 2147483647)))
  local options = body and body[BODY.OPTIONS] or ''
  answer[nth] = { count, first, #options <= longest and options or '' }
end
return answer
