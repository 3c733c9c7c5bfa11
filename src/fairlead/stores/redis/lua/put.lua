#!lua
-- Accept new jobs, all of them or none, at most 500. A job whose id is known here is left as it is.
--   ARGV: now, jobs, channel, word to tell there
--   answers for each job whether it is new
local now = clock(ARGV[1])
local jobs = cmsgpack.unpack(ARGV[2])
if #jobs > 500 then error({ err = 'REFUSED one call puts at most 500 jobs' }) end

local ids = {}
for n = 1, #jobs do ids[n] = jobs[n][PUT.ID] end
local known = call('HMGET', bodies, unpack(ids))
local answers, fresh, count, seen, is_apart = {}, {}, 0, {}, false
local line = arrivals(now, digits_of(now))
for n = 1, #jobs do
  local <PUT> = unpack(jobs[n], 1, #PUT)
  if known[n] or seen[id] then
    answers[n] = 0
  else
    answers[n] = 1
    seen[id] = true
    if run_at or delay ~= 0 then
      run_at = run_at or now + delay
      if not is_count(run_at) then refuse() end
      run_at = math.max(run_at, now)
    else
      run_at = now
    end
    if expires_in then expires_at = now + expires_in end
    if expires_at and not is_count(expires_at) then refuse() end
    check_kind(task, version, priority, options, level)
    if #id == 0 or #id > 36 or type(payload) ~= 'string' or #payload > MOST_BYTES then
      refuse()
    end
    count = count + 2
    fresh[count - 1] = id
    fresh[count] = BODY_HEAD .. cmsgpack.pack(
      task, version, priority, now, expires_at, level, options, payload)
    arrive(line, id, run_at - priority * 1000000, run_at, expires_at)
    if priority ~= 0 then is_apart = true end
  end
end
-- Of these keys most puts write the first alone, so it is asked for by writing it: nothing is written if it
-- is of another type. The bodies were asked for above.
if #line.due > 0 then call('ZSCORE', due, '') end
if #line.expiring > 0 then call('ZSCORE', expiring, '') end
if is_apart then call('HEXISTS', settings, '') end
enter(line)
if is_apart then call('HSETNX', settings, 'apart', 1) end
if count > 0 then
  call('HSET', bodies, unpack(fresh))
  tell(ARGV[3], ARGV[4])
end
return answers
