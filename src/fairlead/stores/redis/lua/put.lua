#!lua
-- Accept new jobs, all of them or none. A job whose id is known here is left as it is.
--   ARGV: now, jobs (as NewJob has its fields), channel, word to tell there
--   answers for each job whether it is new
local now = clock(ARGV[1])
local jobs = cmsgpack.unpack(ARGV[2])
local ids = {}
for n = 1, #jobs do ids[n] = jobs[n][1] end
local known = many('HMGET', bodies, ids)
local answers, fresh, turns, waits, expiries, apart = {}, {}, {}, {}, {}, 0
local seen = {}
for n = 1, #jobs do
  local id, task, _, payload, version, run_at, delay, priority, expires_at, expires_in, options =
    unpack(jobs[n], 1, 11)
  if known[n] or seen[id] then
    answers[n] = 0
  else
    answers[n] = 1
    seen[id] = true
    run_at = run_at or now + delay
    if expires_in then expires_at = now + expires_in end
    fresh[#fresh + 1] = id
    fresh[#fresh + 1] = BODY .. cmsgpack.pack(
      task, version, priority, now, expires_at or null, options or null, payload)
    if run_at > now then
      waits[#waits + 1] = run_at
      waits[#waits + 1] = id
    else
      turns[#turns + 1] = run_at - priority * 1000000
      turns[#turns + 1] = id
    end
    if expires_at then
      expiries[#expiries + 1] = expires_at
      expiries[#expiries + 1] = id
    end
    if priority ~= 0 then apart = apart + 1 end
  end
end
many('HSET', bodies, fresh)
many('ZADD', ready, turns)
many('ZADD', due, waits)
many('ZADD', expiring, expiries)
if apart > 0 then call('HINCRBY', settings, 'apart', apart) end
if #fresh > 0 and ARGV[4] ~= '' then call('PUBLISH', ARGV[3], ARGV[4]) end
return answers
