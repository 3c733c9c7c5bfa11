#!lua flags=allow-oom
-- Write what became of running jobs, under their current fence, and end their leases.
--   ARGV: now, channel; settlements (as Settlement has its fields), word to tell there
--   answers for each 0 if its fence is not the job's, 1 if it is written, and a reason if
--   somebody had asked to cancel the job (see outcome.overrule)
local now = clock(ARGV[1])
local settlements = cmsgpack.unpack(ARGV[3])
local ids, answers, lines = {}, {}, {}
for n = 1, #settlements do ids[n] = settlements[n][1] end
local texts = many('HMGET', runs, ids)
local log_start = gone_before()
local line_number = log_start + call('LLEN', log)
local ended_runs, ended_leases, endings = {}, {}, {}
local when = { done = {}, cancelled = {}, dead = {} }
local now_text, now_digits = digits_of(now)
local seen = {}

-- A failed run is kept with its job.
local function remember(id, attempt, worker, claimed_at, outcome, failure, started_at)
  local text = call('HGET', errors, id)
  local is_read, past = pcall(cmsgpack.unpack, text or cmsgpack.pack({}))
  if not is_read or type(past) ~= 'table' or not past[1] then past = {} end
  for n = 1, #past do
    if type(past[n]) ~= 'table' then past[n] = {} end
    for field = 1, 10 do
      if past[n][field] == nil then past[n][field] = null end
    end
  end
  past[#past + 1] = {
    attempt, outcome, worker or null, claimed_at or null, started_at or null, now,
    failure.error or null, failure.message or null, failure.traceback or null,
    failure.fingerprint or null,
  }
  call('HSET', errors, id, cmsgpack.pack(past))
end

-- The numbers of a job's batches, with this one; a job that snoozes for ever must not drag along
-- those that are gone.
local function with_line(numbers)
  if #numbers > 20 then
    local left = {}
    for n = 1, #numbers do
      if numbers[n] >= log_start then left[#left + 1] = numbers[n] end
    end
    numbers = left
  end
  numbers[#numbers + 1] = line_number
  return numbers
end

for n = 1, #settlements do
  local id, given_fence, state, outcome, counts, crashed, shared_deaths, run_at, result, reason,
    failure, started_at, pool = unpack(settlements[n], 1, 13)
  local fence, lease_until, attempt, crashes, order_at, parked, worker, claimed_at, cancel
  local numbers, task, version, head_start, enqueued_at, expires_at, is_read, _
  if texts[n] and not seen[id] then
    is_read, fence, lease_until, attempt, crashes, _, order_at, parked, worker, claimed_at,
      cancel, numbers, task, version, head_start, enqueued_at, expires_at =
      pcall(read_run, texts[n])
  end
  if not is_read or fence ~= given_fence or lease_until == 0 then
    answers[n] = 0
  else
    seen[id] = true
    answers[n] = cancel or 1
    local own_words = state == 'cancelled' and reason ~= 'cancelled'
    if cancel and state ~= 'dead' and not own_words then
      state, reason, result = 'cancelled', cancel, nil
    end
    lines[#lines + 1] = {
      id, fence, attempt, task, pool or null, worker or null,
      math.max(order_at + head_start, enqueued_at), claimed_at, started_at or null, outcome,
      failure and failure.fingerprint or null,
    }
    numbers = with_line(numbers)
    -- Nothing is written before: what is only done is written at the end.
    if failure or parked or state ~= 'done' then ask_for_all() end
    if failure then remember(id, attempt, worker, claimed_at, outcome, failure, started_at) end
    if parked then
      call('ZREM', unknown, unknown_member(id, cmsgpack.unpack(texts[n])))
    else
      ended_leases[#ended_leases + 1] = id
    end
    if not counts then attempt = attempt - 1 end
    if crashed then crashes = crashes + 1 end
    if state == 'waiting' then
      if run_at then order_at = run_at - head_start end
      call('ZREM', leases, id)
      write_run(id, {
        fence, 0, attempt, crashes, shared_deaths, order_at, false, nil, nil, cancel, numbers,
        task, version, head_start, enqueued_at, expires_at,
      })
      place(id, order_at, head_start, now)
      if expires_at then call('ZADD', expiring, expires_at, id) end
    else
      ended_runs[#ended_runs + 1] = id
      endings[#endings + 1] = id
      endings[#endings + 1] = END .. cmsgpack.pack(
        fence, 0, attempt, crashes, shared_deaths, order_at, false, worker or null,
        claimed_at or null, null, numbers, state, now, reason or null, result or null)
      local those = when[state]
      those[#those + 1] = now_text
      those[#those + 1] = id
    end
  end
end
-- Of those that are only done, all keys must be of our types before the first is written. The runs and the log
-- were read above; the leases are asked for by writing them first.
if #when.done > 0 then
  call('HEXISTS', ends, '')
  call('ZSCORE', done, '')
end
-- Who is not among the leases has lost its own, and nobody took it over. Leases are gone by now, so an order of another
-- type than ours must not end the call: nobody is in it.
if #ended_leases > 0 and many('ZREM', leases, ended_leases) < #ended_leases then
  pcall(many, 'ZREM', lost, ended_leases)
end
many('HDEL', runs, ended_runs)
many('HSET', ends, endings)
for state, those in pairs(when) do many('ZADD', final[state], those) end
if #lines > 0 then
  call('RPUSH', log, now_digits .. cmsgpack.pack(lines))
  tell(ARGV[2], ARGV[4])
end
return answers
