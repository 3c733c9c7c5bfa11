-- The moves that more than one verb makes.

-- An array with nil in it, which the library would take for a map.
local function packed(values, count)
  local whole = {}
  for n = 1, count do
    local value = values[n]
    if value == nil then value = null end
    whole[n] = value
  end
  return cmsgpack.pack(whole)
end

-- Whether a text is before another, byte by byte as in a ZSET; for Lua the locale would decide.
local function less(a, b)
  for n = 1, math.min(#a, #b) do
    local one, other = string.byte(a, n), string.byte(b, n)
    if one ~= other then return one < other end
  end
  return #a < #b
end

-- What is kept must be *sound*: whoever wrote something else damaged it. Whatever is not sound is
-- passed over or put aside here, told by check.lua, and mended by repair.lua.
local DAY, MOST_RUNS = 86400, 1000000000

-- Whether a value is a whole number that Lua holds exactly, as every number here is.
local function is_whole(value)
  return type(value) == 'number' and value % 1 == 0 and value >= -LATEST and value <= LATEST
end

-- The same from zero up to some number; an instant if none is given.
local function is_count(value, most)
  return type(value) == 'number' and value % 1 == 0 and value >= 0 and value <= (most or LATEST)
end

local function is_text(value)
  return type(value) == 'string'
end

-- Whether a text can be the id of a job.
local function is_id(text)
  return #text <= 36 and string.find(text, '^[ -~]+$') ~= nil
end

-- Whether a value is a list of numbers of batches.
local function are_lines(value)
  if type(value) ~= 'table' then return false end
  local count = 0
  for at, number in pairs(value) do
    if not is_count(at) or not is_count(number) then return false end
    count = count + 1
  end
  return count == #value
end

-- The next two are asked for every job of a claim or a settlement. To compare a number costs much
-- less than to ask for its type, and raises if it is none: so they are called by pcall only.

-- Whether the fields of a body that claims look at are sound.
local function is_call(task, version, priority, enqueued_at, expires_at)
  return type(task) == 'string' and version >= 0 and version <= 2147483647 and version % 1 == 0
    and priority >= -DAY and priority <= DAY and priority % 1 == 0
    and enqueued_at >= 0 and enqueued_at <= LATEST and enqueued_at % 1 == 0
    and (expires_at == nil or expires_at >= 0 and expires_at <= LATEST and expires_at % 1 == 0)
end

-- Whether the fields that a run and an end have in common are sound.
local function is_standing(
  fence, lease_until, attempt, crashes, shared_deaths, order_at, parked, worker, claimed_at, cancel,
  lines
)
  return fence >= 0 and fence <= LATEST and fence % 1 == 0
    and lease_until >= 0 and lease_until <= LATEST and lease_until % 1 == 0
    and attempt >= 0 and attempt <= MOST_RUNS and attempt % 1 == 0
    and crashes >= 0 and crashes <= MOST_RUNS and crashes % 1 == 0
    and shared_deaths >= 0 and shared_deaths <= MOST_RUNS and shared_deaths % 1 == 0
    and (parked == true or parked == false)
    and order_at >= -LATEST and order_at <= LATEST and order_at % 1 == 0
    and (worker == nil or type(worker) == 'string') and (cancel == nil or type(cancel) == 'string')
    and (claimed_at == nil or claimed_at >= 0 and claimed_at <= LATEST and claimed_at % 1 == 0)
    and (type(lines) == 'table' and next(lines) == nil or are_lines(lines))
end

-- The fields of a run, or nothing; by pcall, as above.
local function read_run(text)
  local _, fence, lease_until, attempt, crashes, shared_deaths, order_at, parked, worker, claimed_at,
    cancel, lines, task, version, head_start, enqueued_at, expires_at =
    cmsgpack.unpack_limit(text, RUN_EXPIRES_AT, #RUN)
  if string.sub(text, 1, #RUN) == RUN
      and is_standing(fence, lease_until, attempt, crashes, shared_deaths, order_at, parked, worker,
        claimed_at, cancel, lines)
      and is_call(task, version, head_start / 1000000, enqueued_at, expires_at) then
    return fence, lease_until, attempt, crashes, shared_deaths, order_at, parked, worker, claimed_at,
      cancel, lines, task, version, head_start, enqueued_at, expires_at
  end
end

-- The fields of a text that begins as it should, if a question about them is answered yes; or nil.
local function fields_of(text, beginning, question)
  if not text or string.sub(text, 1, #beginning) ~= beginning then return nil end
  local is_read, fields = pcall(cmsgpack.unpack, text)
  if not is_read or type(fields) ~= 'table' then return nil end
  local is_asked, answer = pcall(question, fields)
  return is_asked and answer and fields or nil
end

local function is_body(body)
  return is_call(unpack(body, TASK, EXPIRES_AT)) and is_text(body[PAYLOAD])
    and (body[OPTIONS] == nil or is_text(body[OPTIONS]))
end

local function is_run(run)
  local task, version, head_start, enqueued_at, expires_at = unpack(run, RUN_TASK, RUN_EXPIRES_AT)
  return is_standing(unpack(run, FENCE, LINES))
    and is_call(task, version, head_start / 1000000, enqueued_at, expires_at)
end

local function is_end(ending)
  return is_standing(unpack(ending, FENCE, LINES)) and is_text(ending[STATE])
    and final[ending[STATE]] ~= nil and is_count(ending[FINISHED_AT])
    and (ending[REASON] == nil or is_text(ending[REASON]))
    and (ending[RESULT] == nil or is_text(ending[RESULT]))
end

-- The body, the run or the end of a job; nil for what somebody damaged.
local function body_of(text)
  return fields_of(text, BODY, is_body)
end

local function run_of(text)
  return fields_of(text, RUN, is_run)
end

local function end_of_text(text)
  return fields_of(text, END, is_end)
end

-- Where a job stands that was never claimed: by its score in ready or due, if that is sound.
local function order_of(body, order_at, run_at)
  local head_start = body[PRIORITY] * 1000000
  order_at = tonumber(order_at) or (tonumber(run_at) or body[ENQUEUED_AT]) - head_start
  return is_whole(order_at) and order_at or body[ENQUEUED_AT] - head_start
end

-- The numbers of batches that a text holds; none if somebody damaged it.
local function lines_in(text)
  local is_read, numbers = pcall(cmsgpack.unpack, text or '')
  return is_read and are_lines(numbers) and numbers or {}
end

-- How far we count what only grows: entries of the log, actions. The numbers that follow must be exact,
-- too: whoever wrote a greater one would make all that is counted later unreadable.
local MOST_COUNTED = 4503599627370496

-- How many entries of the log are gone.
local function gone_before()
  local start = tonumber(call('HGET', settings, 'log_start') or 0)
  return is_count(start, MOST_COUNTED) and start or 0
end

local function first_run(body, order_at)
  return {
    0, 0, 0, 0, 0, order_at, false, nil, nil, nil, {}, body[TASK], body[VERSION],
    body[PRIORITY] * 1000000, body[ENQUEUED_AT], body[EXPIRES_AT],
  }
end

-- The same for a run, which is packed with every claim: only some fields can be nil.
local function packed_run(run)
  local worker, claimed_at = run[WORKER], run[CLAIMED_AT]
  local cancel, expires_at = run[CANCEL], run[RUN_EXPIRES_AT]
  run[WORKER], run[CLAIMED_AT] = worker or null, claimed_at or null
  run[CANCEL], run[RUN_EXPIRES_AT] = cancel or null, expires_at or null
  local text = cmsgpack.pack(run)
  run[WORKER], run[CLAIMED_AT] = worker, claimed_at
  run[CANCEL], run[RUN_EXPIRES_AT] = cancel, expires_at
  return text
end

local function write_run(id, run)
  call('HSET', runs, id, packed_run(run))
end

local function unknown_member(id, run)
  local kind = run[LEASE_UNTIL] > 0 and 'r' or 'w'
  return run[RUN_TASK] .. '\0' .. string.format('%010d', run[RUN_VERSION]) .. '\0' .. kind .. id
end

local function unknown_id(member)
  return string.match(member, '%z%d+%z.(.*)$') or ''
end

-- Take a live job out of the place it has.
local function displace(id, run)
  if run and run[PARKED] then
    call('ZREM', unknown, unknown_member(id, run))
  elseif run and run[LEASE_UNTIL] > 0 then
    if call('ZREM', leases, id) == 0 then call('ZREM', lost, id) end
  elseif call('ZREM', ready, id) == 0 then
    call('ZREM', due, id)
  end
end

-- Give a waiting job its place: in the order, or parked until it is due.
local function place(id, order_at, head_start, now)
  if order_at + head_start > now then
    call('ZADD', due, order_at + head_start, id)
  else
    call('ZADD', ready, order_at, id)
  end
end

-- What is kept of a run that cannot be read.
local BLANK = { 0, 0, 0, 0, 0, 0, false, nil, nil, nil, {} }

-- The end of a run, as it is kept. The first fields stay as they are.
local function end_of(run, state, now, reason, result)
  return END .. cmsgpack.pack(
    run[FENCE], 0, run[ATTEMPT], run[CRASHES], run[SHARED_DEATHS], run[ORDER_AT], false,
    run[WORKER] or null, run[CLAIMED_AT] or null, null, run[LINES], state, now,
    reason or null, result or null
  )
end

-- Move a job out of the line; its place and its run are gone already.
local function finish(id, run, state, now, reason, result)
  call('HSET', ends, id, end_of(run, state, now, reason, result))
  call('ZADD', final[state], now, id)
end

-- Put a damaged job aside that was taken from its place: a dead letter if something is left of it, and
-- nothing if not. One that is in another place, too, is met there; one without a name stays in no place,
-- until repair.lua gives it one.
local function put_aside(id, run, now)
  for _, key in ipairs({ ready, due, leases, lost }) do
    if call('ZSCORE', key, id) then return end
  end
  if call('HEXISTS', bodies, id) == 1 then
    if not is_id(id) then return end
    if call('HEXISTS', ends, id) == 0 then
      finish(id, run or BLANK, 'dead', now, 'unreadable', nil)
    end
  end
  call('HDEL', runs, id)
  call('ZREM', expiring, id)
end

-- How many bytes of jobs a call may read that can leave the rest to the next one: to read and to write
-- them keeps everybody else waiting.
local MOST_READ = 1000000

-- The run of a live job that may never have been claimed; nil if it is not live. And the bytes of its
-- body, if that was read.
local function live_run(id)
  local run = run_of(call('HGET', runs, id))
  if run then return run, 0 end
  local order_at = call('ZSCORE', ready, id)
  local run_at = not order_at and call('ZSCORE', due, id)
  if not order_at and not run_at then return nil, 0 end
  local text = call('HGET', bodies, id) or ''
  local body = body_of(text)
  return body and first_run(body, order_of(body, order_at, run_at)), #text
end

-- When all keys of a queue were last seen to be of our types, by its order.
local sound_at, queues_seen = {}, 0

local function note_sound(key, now)
  if not sound_at[key] then
    queues_seen = queues_seen + 1
    if queues_seen > 10000 then sound_at, queues_seen = {}, 1 end
  end
  sound_at[key] = now
end

-- The tasks that a worker knows, with their versions; nil for all. Its next call tells the same ones.
local capable_text, capable_tasks = '', nil

local function capable_of(text)
  if text ~= capable_text then
    local tasks = text ~= '' and cmsgpack.unpack(text) or nil
    capable_text, capable_tasks = text, tasks
  end
  return capable_tasks
end

-- When a lease ends that begins now, as a text, and what stands before and after the order_at of first runs: it is the
-- same for all jobs of a claim, and of the next queues in the same call.
local run_now, run_lease, run_worker, until_text, run_before, run_between

local function first_runs(now, lease, worker)
  if now ~= run_now or lease ~= run_lease or worker ~= run_worker then
    until_text = string.format('%.0f', now + lease)
    run_before = RUN .. cmsgpack.pack(now, now + lease, 1, 0, 0)
    run_between = cmsgpack.pack(false, worker, now, null, {})
    run_now, run_lease, run_worker = now, lease, worker
  end
  return until_text, run_before, run_between
end

-- An instant as a text, and with 16 digits: a number would be written anew for each job. It is the same for all
-- queues of a call.
local digits_now, digits, digits_long

local function digits_of(now)
  if now ~= digits_now then
    digits_now, digits, digits_long = now, string.format('%.0f', now), string.format('%016.0f', now)
  end
  return digits, digits_long
end

-- A number for a command, as a text if it is small: to make one costs more than most commands, so they are kept.
local small_numbers = {}

local function text_of(number)
  if number > 1000 then return number end
  local text = small_numbers[number]
  if not text then
    text = string.format('%.0f', number)
    small_numbers[number] = text
  end
  return text
end

-- How many of an order are before a place; those with the same score stand there by id.
local function rank_of(key, at, id)
  local score = string.format('%.0f', at)
  local low = call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if less(call('ZRANGE', key, middle, middle)[1], id) then low = middle + 1 else high = middle end
  end
  return low
end

-- When the first of these falls due; the greatest number if none does. Numbers are written as texts in
-- what every call asks: to make a text of one costs more than most commands.
local function first_at(key)
  return tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) or LATEST
end

-- In how many microseconds something of this queue falls due: a job's time, the end of a lease, an expiry;
-- nil if nothing does. What is overdue waits for a claim already.
local function soonest(now)
  local soon = math.min(first_at(due), first_at(leases), first_at(expiring)) - now
  return soon < LATEST - now and math.max(0, soon) or nil
end

-- In how many microseconds something falls due, -1 if nothing does. `soon` is when the first thing fell due as the call
-- began; if that is past, it was moved on, and what is first now is looked up.
local function until_due(soon, now)
  if soon <= now then return soonest(now) or -1 end
  return soon < LATEST and soon - now or -1
end

-- Let a claim go back to what comes to stand before its place.
local function go_back(claim, order_at)
  if claim and claim.after_at and order_at <= claim.after_at then
    claim.after_at, claim.after_id = order_at, ''
  end
end

-- Put jobs whose time has come into the order, at the place they have kept; `claim` is the claim that does it, if any.
-- Their bodies are read for that, so large ones are a few at a time; answers `most` if there may be more.
local function promote(now, most, claim)
  local ids = call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local placed, promoted, left = {}, {}, 4000000
  for n = 1, #ids, 2 do
    if left <= 0 then break end
    local text = call('HGET', bodies, ids[n])
    local body = body_of(text)
    left = left - #(text or '')
    local order_at = body and order_of(body, nil, ids[n + 1]) or 0
    go_back(claim, order_at)
    placed[#placed + 1] = order_at
    placed[#placed + 1] = ids[n]
    promoted[#promoted + 1] = ids[n]
  end
  many('ZADD', ready, placed)
  many('ZREM', due, promoted)
  spend(#promoted, 4000000 - left)
  return left > 0 and #promoted or most
end

-- Cancel waiting jobs that must not start any more, large ones a few at a time. What else has such a mark
-- loses it.
local function expire(now, most)
  local ids = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, most)
  local left = MOST_READ
  spend(#ids, 0)
  for n = 1, #ids do
    if left < 0 then return n - 1 end
    local run, bytes = live_run(ids[n])
    left = left - bytes
    local expires_at = run and run[LEASE_UNTIL] == 0 and run[RUN_EXPIRES_AT]
    if expires_at and expires_at > now then
      call('ZADD', expiring, expires_at, ids[n])
    else
      if expires_at and is_id(ids[n]) then
        displace(ids[n], run)
        call('HDEL', runs, ids[n])
        finish(ids[n], run, 'cancelled', now, 'expired', nil)
      end
      call('ZREM', expiring, ids[n])
    end
  end
  return #ids
end

-- Bring back jobs that were parked, now that somebody knows their tasks; nil knows them all.
local function bring_back(capable, now, most, claim)
  if call('ZCARD', unknown) == 0 then return 0 end
  -- Members are looked for by their text, which takes all of them to have the same score.
  for _, span in ipairs({ { '-inf', '(0' }, { '(0', '+inf' } }) do
    for _, member in ipairs(call('ZRANGEBYSCORE', unknown, span[1], span[2], 'LIMIT', 0, most)) do
      call('ZADD', unknown, 0, member)
    end
  end
  local members = {}
  if not capable then
    members = call('ZRANGE', unknown, 0, most - 1)
  else
    for task, version in pairs(capable) do
      local past = '(' .. task .. '\0' .. string.format('%010d', version + 1)
      local found = call('ZRANGEBYLEX', unknown, '[' .. task .. '\0', past, 'LIMIT', 0, most - #members)
      for n = 1, #found do members[#members + 1] = found[n] end
      if #members >= most then break end
    end
  end
  for n = 1, #members do
    local id = unknown_id(members[n])
    local run = run_of(call('HGET', runs, id))
    if run then
      run[PARKED] = false
      write_run(id, run)
      if run[LEASE_UNTIL] > now then
        call('ZADD', leases, run[LEASE_UNTIL], id)
      else
        call('ZADD', run[LEASE_UNTIL] > 0 and lost or ready, run[ORDER_AT], id)
        go_back(claim, run[ORDER_AT])
      end
    else -- Nobody knows how often it ran.
      put_aside(id, nil, now)
    end
  end
  many('ZREM', unknown, members)
  spend(#members, 0)
  return #members
end

-- What is kept of a job: its body, run, end, failed runs, and its score in ready and in due.
local function kept(id)
  return {
    call('HGET', bodies, id), call('HGET', runs, id), call('HGET', ends, id),
    call('HGET', errors, id), call('ZSCORE', ready, id), call('ZSCORE', due, id),
  }
end

-- How many bytes there are of what is kept of a job.
local function size_of(values)
  local size = 0
  for n = 1, 4 do size = size + #(values[n] or '') end
  return size
end

-- The end of a job, if it is in one of these final states; else nil. And how many bytes were read.
local function end_in(id, states)
  local text = call('HGET', ends, id) or ''
  local ending = end_of_text(text)
  return ending and states[ending[STATE]] and ending or nil, #text
end

-- A list of words as a set of them.
local function set_of(text)
  local set = {}
  for _, word in ipairs(cmsgpack.unpack(text)) do set[word] = true end
  return set
end

-- Tell on a channel that something changed; no word, no news. That is a hint: who may not tell has done its work all
-- the same, and an error would say that it has not.
local function tell(channel, word)
  if word ~= '' then pcall(call, 'PUBLISH', channel, word) end
end

-- What people do. text: [id, number, who, verb, target, job_id], where the id is that of the action with a
-- mark of who, verb and target. Calls of one action are one line with one count. The line also keeps what each
-- of its calls was answered (core/answers.py): ;mark:looked:missed. where missed are the places, from 0,
-- of what the call looked at and did nothing to.

-- The line of an action; nil if there is none, and an empty one if it cannot be read.
local function act_line(id)
  local text = call('HGET', acted, id)
  if not text then return nil end
  local is_read, line = pcall(cmsgpack.unpack, text)
  if not is_read or type(line) ~= 'table' or not is_count(line[5]) then return {} end
  if type(line[8]) ~= 'string' then line[8] = '' end
  return line
end

-- What a call of an action asks for, as a short text.
local function mark_of(...)
  local words = { ... }
  for n = 1, #words do words[n] = #words[n] .. ' ' .. words[n] end
  return string.sub(redis.sha1hex(table.concat(words)), 1, 16)
end

-- How such a call was answered before: how many it looked at, and a set of the places where it did nothing.
-- Nil if it is new.
local function past_of(text, mark)
  local line = act_line(cmsgpack.unpack(text)[1])
  if not line or not line[8] then return nil end
  local looked, places = string.match(line[8], ';' .. mark .. ':(%d+):([%d,]*)%.')
  if not looked then return nil end
  local missed = {}
  for place in string.gmatch(places, '%d+') do missed[tonumber(place)] = true end
  return tonumber(looked), missed
end

-- The ids that such a call touched.
local function past_ids(ids, looked, missed)
  local touched = {}
  for n = 1, math.min(looked, #ids) do
    if not missed[n - 1] then touched[#touched + 1] = ids[n] end
  end
  return touched
end

-- The places of what a call looked at and did not touch.
local function missed_in(ids, looked, touched)
  local is_touched, missed = {}, {}
  for n = 1, #touched do is_touched[touched[n]] = true end
  for n = 1, looked do
    if not is_touched[ids[n]] then missed[#missed + 1] = n - 1 end
  end
  return table.concat(missed, ',')
end

-- Write down what a person did, and how it is answered. Each edit keeps what it replaced, in a line of its own.
local function write_act(text, count, now, before, mark, looked, missed)
  local by = cmsgpack.unpack(text)
  local answer = ';' .. mark .. ':' .. looked .. ':' .. missed .. '.'
  local line = act_line(by[1])
  if line and line[5] and not line[6] and not before then
    line[1], line[5], line[8] = now, line[5] + count, line[8] .. answer
  else
    if line and line[8] then -- Who repeats this looks there.
      line[8] = line[8] .. answer
      call('HSET', acted, by[1], packed(line, 8))
    end
    if line then by[1] = by[1] .. ' ' .. by[2] end
    line = { now, by[3], by[4], by[5], count, before, by[6], answer }
    call('ZADD', acts, by[2], by[1])
  end
  call('HSET', acted, by[1], packed(line, 8))
end
