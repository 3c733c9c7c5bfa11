#!lua flags=allow-oom
-- Take back the leases of jobs that a limit refused right after their claim, and park them for it: as if they had
-- not been claimed. A run that was lost holds what it uses, and is not refused.
--   ARGV: now, gate, [key, id, fence] of each
--   answers how many
local now, gate = clock(ARGV[1]), ARGV[2]
local by_key, expiring_at, count = {}, {}, 0
for _, refused in ipairs(cmsgpack.unpack(ARGV[3])) do
  local key, id, fence = unpack(refused, 1, 3)
  local standing = live_of(call('HGET', standings, id))
  if standing and standing[STANDING.FENCE] == fence and standing[STANDING.LEASE_UNTIL] > 0
      and not standing[STANDING.GATE] then
    displace(id, standing)
    standing[STANDING.LEASE_UNTIL], standing[STANDING.ATTEMPT] = 0, standing[STANDING.ATTEMPT] - 1
    standing[STANDING.WORKER], standing[STANDING.CLAIMED_AT] = nil, nil
    by_key[key] = by_key[key] or {}
    by_key[key][id] = standing
    local expires_at = standing[STANDING.EXPIRES_AT]
    if expires_at then
      expiring_at[#expiring_at + 1] = expires_at
      expiring_at[#expiring_at + 1] = id
    end
    count = count + 1
  end
end
for key, jobs in pairs(by_key) do park(jobs, gate, key) end
many('ZADD', expiring, expiring_at)
return count
