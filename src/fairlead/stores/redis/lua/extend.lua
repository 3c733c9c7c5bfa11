#!lua flags=allow-oom
-- Renew leases, by pairs of id and fence.
--   ARGV: now, lease, pairs
--   answers for each pair 0 if the job is no longer its own, 1 if it is renewed, and 2 if
--   somebody asked to cancel it as well
local now = clock(ARGV[1])
local lease = count_of(ARGV[2], LATEST - now)
local pairs_given = cmsgpack.unpack(ARGV[3])
local ids, answers = {}, {}
for n = 1, #pairs_given do ids[n] = pairs_given[n][1] end
local texts = many('HMGET', runs, ids)
for n = 1, #ids do
  local run = run_of(texts[n])
  if run and run[LEASE_UNTIL] > 0 and run[FENCE] == pairs_given[n][2] then
    run[LEASE_UNTIL] = now + lease
    answers[n] = run[CANCEL] and 2 or 1
    if not run[PARKED] then
      call('ZREM', lost, ids[n])
      call('ZADD', leases, run[LEASE_UNTIL], ids[n])
    end
    write_run(ids[n], run)
  else
    answers[n] = 0
  end
end
return answers
