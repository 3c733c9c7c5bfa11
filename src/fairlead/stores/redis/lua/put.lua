#!lua
-- Accept new jobs, all of them or none, at most 500. A job whose id is known here is left as it is.
--   ARGV: now, jobs (as NewJob has its fields), channel, word to tell there
--   answers for each job whether it is new
local now = clock(ARGV[1])
local jobs = cmsgpack.unpack(ARGV[2])
if #jobs > 500 then error({ err = 'REFUSED one call puts at most 500 jobs' }) end
local MOST_BYTES = 262144

-- Refuse what no client of ours puts. Nothing is written before all are checked. What many jobs have
-- in common is checked once: to compare it is cheaper.
local function refuse()
  error({ err = 'REFUSED its id, times or sizes are none that a job may have; enqueue() checks them' })
end

local the_task, the_version, the_priority, the_options = false -- No task is that.
local function check_kind(task, version, priority, options)
  if not is_call(task, version, priority, now, nil)
      or options and (not is_text(options) or #options > MOST_BYTES) then
    refuse()
  end
  the_task, the_version, the_priority, the_options = task, version, priority, options
end

local ids = {}
for n = 1, #jobs do ids[n] = jobs[n][1] end
local known = call('HMGET', bodies, unpack(ids))
local answers, fresh, turns, waits, expiries, is_apart = {}, {}, {}, {}, {}, false
local seen, now_text = {}, string.format('%.0f', now)
for n = 1, #jobs do
  local id, task, _, payload, version, run_at, delay, priority, expires_at, expires_in, options =
    unpack(jobs[n], 1, 11)
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
    if task ~= the_task or version ~= the_version or priority ~= the_priority
        or options ~= the_options then
      check_kind(task, version, priority, options)
    end
    if #id == 0 or #id > 36 or type(payload) ~= 'string' or #payload > MOST_BYTES then
      refuse()
    end
    fresh[#fresh + 1] = id
    fresh[#fresh + 1] = BODY .. cmsgpack.pack(
      task, version, priority, now, expires_at or null, options or null, payload)
    if run_at > now then
      waits[#waits + 1] = run_at
      waits[#waits + 1] = id
    else
      local order_at = run_at - priority * 1000000
      turns[#turns + 1] = order_at == now and now_text or order_at
      turns[#turns + 1] = id
    end
    if expires_at then
      expiries[#expiries + 1] = expires_at
      expiries[#expiries + 1] = id
    end
    if priority ~= 0 then is_apart = true end
  end
end
-- Of these keys most puts write the first alone, so it is asked for by writing it: nothing is written if it
-- is of another type. The bodies were asked for above.
if #waits > 0 then call('ZSCORE', due, '') end
if #expiries > 0 then call('ZSCORE', expiring, '') end
if is_apart then call('HEXISTS', settings, '') end
if #turns > 0 then call('ZADD', ready, unpack(turns)) end
if #waits > 0 then call('ZADD', due, unpack(waits)) end
if #expiries > 0 then call('ZADD', expiring, unpack(expiries)) end
if is_apart then call('HSETNX', settings, 'apart', 1) end
if #fresh > 0 then call('HSET', bodies, unpack(fresh)) end
if #fresh > 0 then tell(ARGV[3], ARGV[4]) end
return answers
