#!lua flags=allow-oom
-- Renew leases, by pairs of id and fence.
--   ARGV: now, lease, pairs
--   answers for each pair 0 if the job is no longer its own, 1 if it is renewed, and 2 if
--   somebody asked to cancel it as well
local now = clock(ARGV[1])
local lease = count_of(ARGV[2], LATEST - now)
local pairs_given = cmsgpack.unpack(ARGV[3])
local ids, answers = {}, {}
local found, places, renewed = {}, {}, {}
for n = 1, #pairs_given do ids[n] = pairs_given[n][PAIR.ID] end
local texts = many('HMGET', standings, ids)
for n = 1, #ids do
  local id, standing = ids[n], live_of(texts[n])
  if standing and standing[STANDING.LEASE_UNTIL] > 0
      and standing[STANDING.FENCE] == pairs_given[n][PAIR.FENCE] then
    standing[STANDING.LEASE_UNTIL] = now + lease
    answers[n] = standing[STANDING.CANCEL] and 2 or 1
    local at = #renewed
    renewed[at + 1], renewed[at + 2] = id, packed(standing, #STANDING)
    if not standing[STANDING.GATE] then
      at = #places
      found[#found + 1], places[at + 1], places[at + 2] = id, now + lease, id
    end
  else
    answers[n] = 0
  end
end
many('ZREM', lost, found)
many('ZADD', leases, places)
many('HSET', standings, renewed)
return answers
