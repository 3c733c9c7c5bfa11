#!lua flags=allow-oom
-- Write what became of running jobs, under their current fence, and end their leases.
--   ARGV: now, settlements (as Settlement has its fields), channel, word to tell there
--   answers for each 0 if its fence is not the job's, 1 if it is written, and a reason if
--   somebody had asked to cancel the job (see outcome.overrule)
local now = clock(ARGV[1])
local settlements = cmsgpack.unpack(ARGV[2])
local ids, answers, lines = {}, {}, {}
for n = 1, #settlements do ids[n] = settlements[n][1] end
local texts = many('HMGET', runs, ids)
local line_number = (call('HGET', settings, 'log_start') or 0) + call('LLEN', log)
local ended_runs, ended_leases, endings = {}, {}, {}
local when = { done = {}, cancelled = {}, dead = {} }
local seen = {}

-- A failed run is kept with its job.
local function remember(id, run, outcome, failure, started_at)
  local text = call('HGET', errors, id)
  local past = text and cmsgpack.unpack(text) or {}
  for n = 1, #past do
    for field = 1, 10 do
      if past[n][field] == nil then past[n][field] = null end
    end
  end
  past[#past + 1] = {
    run[ATTEMPT], outcome, run[WORKER] or null, run[CLAIMED_AT] or null, started_at or null, now,
    failure.error or null, failure.message or null, failure.traceback or null,
    failure.fingerprint or null,
  }
  call('HSET', errors, id, cmsgpack.pack(past))
end

for n = 1, #settlements do
  local id, fence, state, outcome, counts, crashed, suspect, run_at, result, reason, failure,
    started_at, pool = unpack(settlements[n], 1, 13)
  local run = texts[n] and not seen[id] and cmsgpack.unpack(texts[n])
  if not run or run[LEASE_UNTIL] == 0 or run[FENCE] ~= fence then
    answers[n] = 0
  else
    seen[id] = true
    answers[n] = 1
    if run[CANCEL] then
      answers[n] = run[CANCEL]
      local own_words = state == 'cancelled' and reason ~= 'cancelled'
      if state ~= 'dead' and not own_words then
        state, reason, result = 'cancelled', run[CANCEL], nil
      end
    end
    lines[#lines + 1] = {
      id, run[FENCE], run[ATTEMPT], run[RUN_TASK], pool or null, run[WORKER] or null,
      math.max(run[ORDER_AT] + run[HEAD_START], run[RUN_ENQUEUED_AT]), run[CLAIMED_AT],
      started_at or null, outcome,
      failure and failure.fingerprint or null,
    }
    run[LINES][#run[LINES] + 1] = line_number
    if failure then remember(id, run, outcome, failure, started_at) end
    if not counts then run[ATTEMPT] = run[ATTEMPT] - 1 end
    if crashed then run[CRASHES] = run[CRASHES] + 1 end
    run[SUSPECT] = suspect
    if run[PARKED] then
      displace(id, run)
      run[PARKED] = false
    else
      ended_leases[#ended_leases + 1] = id
    end
    if state == 'waiting' then
      if run_at then run[ORDER_AT] = run_at - run[HEAD_START] end
      run[LEASE_UNTIL], run[WORKER], run[CLAIMED_AT] = 0, nil, nil
      write_run(id, run)
      place(id, run[ORDER_AT], run[HEAD_START], now)
      if run[RUN_EXPIRES_AT] then call('ZADD', expiring, run[RUN_EXPIRES_AT], id) end
    else
      ended_runs[#ended_runs + 1] = id
      endings[#endings + 1] = id
      endings[#endings + 1] = end_of(run, state, now, reason, result)
      local those = when[state]
      those[#those + 1] = now
      those[#those + 1] = id
    end
  end
end
many('ZREM', leases, ended_leases)
if call('EXISTS', lost) == 1 then many('ZREM', lost, ended_leases) end
many('HDEL', runs, ended_runs)
many('HSET', ends, endings)
for state, those in pairs(when) do many('ZADD', final[state], those) end
if #lines > 0 then
  call('RPUSH', log, string.format('%016.0f', now) .. cmsgpack.pack(lines))
  if ARGV[4] ~= '' then call('PUBLISH', ARGV[3], ARGV[4]) end
end
return answers
