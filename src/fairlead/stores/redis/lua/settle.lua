#!lua flags=allow-oom
-- Write what became of running jobs, under their current fence, and end their leases.
--   ARGV: now, channel, level; settlements, word to tell there
--   answers for each 0 if its fence is not the job's or it is above the level, 1 if it is written, and a reason if
--   somebody had asked to cancel the job (see outcome.overrule)
local now, most_level = clock(ARGV[1]), count_of(ARGV[3])
local settlements = cmsgpack.unpack(ARGV[4])
local ids, answers, log_lines, seen = {}, {}, {}, {}
for n = 1, #settlements do ids[n] = settlements[n][SETTLEMENT.ID] end
local texts = many('HMGET', standings, ids)
local log_start = gone_before()
local line_number = log_start + call('LLEN', log)
local now_text, now_digits = digits_of(now)
local out, count, leased = departures(now, now_text), 0, 0

for n = 1, #settlements do
  local settlement = settlements[n]
  local id, is_read = settlement[SETTLEMENT.ID], false
  local <STANDING fence..expires_at>, level, attached, head, rest
  if texts[n] and not seen[id] then
    is_read, <STANDING fence..expires_at>, level, attached, head, rest = pcall(read_live, texts[n])
  end
  if not is_read or fence ~= settlement[SETTLEMENT.FENCE] or lease_until == 0 or level > most_level then
    answers[n] = 0
  else
    seen[id] = true
    answers[n] = cancel or 1
    local state, reason, result = settlement[SETTLEMENT.STATE], settlement[SETTLEMENT.REASON], settlement[SETTLEMENT.RESULT]
    local failure, outcome = settlement[SETTLEMENT.FAILURE], settlement[SETTLEMENT.OUTCOME]
    local started_at = settlement[SETTLEMENT.STARTED_AT]
    local own_words = state == 'cancelled' and reason ~= 'cancelled'
    if cancel and state ~= 'dead' and not own_words then
      state, reason, result = 'cancelled', cancel, nil
    end
    count = count + 1
    log_lines[count] = {
      id, fence, attempt, task, settlement[SETTLEMENT.POOL] or null, worker or null,
      math.max(order_at + head_start, enqueued_at), claimed_at, started_at or null, outcome,
      failure and failure.fingerprint or null,
    }
    lines = with_line(lines, line_number, log_start)
    -- Nothing is written before: what is only done is written at the end.
    if failure or gate or state ~= 'done' then ask_for_all() end
    if failure then remember(id, attempt, worker, claimed_at, started_at, now, outcome, failure) end
    if gate then
      call('ZREM', parked, gate .. '\0r' .. id)
    else
      leased = leased + 1
      out.leased[leased] = id
    end
    if not settlement[SETTLEMENT.COUNTS] then attempt = attempt - 1 end
    if settlement[SETTLEMENT.CRASHED] then crashes = crashes + 1 end
    shared_deaths = settlement[SETTLEMENT.SHARED_DEATHS]
    if state == 'waiting' then
      local run_at = settlement[SETTLEMENT.RUN_AT]
      if run_at then order_at = run_at - head_start end
      wait_again(
        id, now, head, fence, attempt, crashes, shared_deaths, order_at, cancel, lines,
        task, version, head_start, enqueued_at, expires_at, level, attached, rest)
    else
      depart(
        out, id, head, fence, attempt, crashes, shared_deaths, order_at, worker, claimed_at, lines,
        state, reason, result, level, attached, rest)
    end
  end
end
leave(out)
if count > 0 then
  call('RPUSH', log, now_digits .. cmsgpack.pack(log_lines))
  tell(ARGV[2], ARGV[5])
end
return answers
