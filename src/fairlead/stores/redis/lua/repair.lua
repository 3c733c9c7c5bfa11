#!lua flags=allow-oom
-- Put jobs right, or move them out. A job of which only marks are damaged is put right, any other
-- becomes a dead letter, reason `unreadable`; of what is no job, marks are removed.
--   ARGV: now, the mark of the queue, and for each job its id, how it is parked, or '', and
--         whether its options cannot be read (1)
--   answers for each what it is now: right, dead, removed, '' if nothing was wrong, or its new id;
--   not for the last ones, if it has read enough before them
local now = clock(ARGV[1])
check.begin()

-- Take a job out of every place.
local function take_away(id, member, run)
  for _, keys in ipairs({ check.orders, final, { expiring } }) do
    for _, key in pairs(keys) do call('ZREM', key, id) end
  end
  if member ~= '' or id == '' then call('ZREM', unknown, member) end
  if run then call('ZREM', unknown, unknown_member(id, run)) end
end

local function forget(id, member, run)
  take_away(id, member, run)
  for _, key in pairs(check.hashes) do call('HDEL', key, id) end
end

-- Make a dead letter of a job under a name that people can call.
local function rename(id, member)
  local sum = redis.sha1hex(id)
  local name = string.format('%s-%s-8%s-8%s-%s%s', string.sub(sum, 1, 8), string.sub(sum, 9, 12),
    string.sub(sum, 13, 15), string.sub(sum, 16, 18), string.sub(sum, 19, 26), ARGV[2])
  if call('HEXISTS', bodies, name) == 0 then
    call('HSET', bodies, name, call('HGET', bodies, id))
    finish(name, BLANK, 'dead', now, 'unreadable', nil)
  end
  forget(id, member, nil)
  return name
end

local function mend_history(id)
  local text = call('HGET', errors, id)
  local sound, is_whole_history = check.history(text)
  if is_whole_history then return end
  for n = 1, #sound do
    for field = 1, 10 do
      if sound[n][field] == nil then sound[n][field] = null end
    end
  end
  if #sound > 0 then call('HSET', errors, id, cmsgpack.pack(sound)) else call('HDEL', errors, id) end
end

-- Take numbers of batches that cannot be out of a run or an end, which may be sound but for these.
local function mend_lines(id)
  for _, each in ipairs({ { runs, run_of, RUN_EXPIRES_AT }, { ends, end_of_text, RESULT } }) do
    local key, sound, count = unpack(each)
    local text = call('HGET', key, id)
    local is_read, fields = pcall(cmsgpack.unpack, text or '')
    if text and not sound(text) and is_read and type(fields) == 'table' then
      local numbers = {}
      for _, number in pairs(type(fields[LINES]) == 'table' and fields[LINES] or {}) do
        if is_count(number) then numbers[#numbers + 1] = number end
      end
      table.sort(numbers)
      fields[LINES] = numbers
      text = packed(fields, count)
      if sound(text) then call('HSET', key, id, text) end
    end
  end
end

-- Where a job has ended by its marks: the state, and when.
local function ended_by_mark(id)
  local state, at, count = nil, nil, 0
  for each, key in pairs(final) do
    local score = tonumber(call('ZSCORE', key, id))
    if score then state, at, count = each, score, count + 1 end
  end
  if count ~= 1 then state = nil end
  return state, is_count(at) and at or now, count > 0
end

local function mend_end(id, member, body, run, ending)
  local state, at = ended_by_mark(id)
  local past, reason, result = ending or run or BLANK, nil, nil
  if ending then
    state, at, reason, result = ending[STATE], ending[FINISHED_AT], ending[REASON], ending[RESULT]
  end
  if not body or not state then state, reason, result = 'dead', 'unreadable', nil end
  if state == 'dead' and not reason then reason = 'unreadable' end
  take_away(id, member, run)
  call('HDEL', runs, id)
  finish(id, past, state, at, reason, result)
end

-- Make the counts of a live job agree with its body and with each other.
local function agree(run, body)
  local signs = (run[WORKER] and 1 or 0) + (run[CLAIMED_AT] and 1 or 0)
    + (run[LEASE_UNTIL] > 0 and 1 or 0)
  if signs > 1 then -- What two of three say is true.
    if run[FENCE] == 0 or run[FENCE] > now + check.YEAR then run[FENCE] = now end
    if run[LEASE_UNTIL] == 0 or run[LEASE_UNTIL] > now + check.YEAR then run[LEASE_UNTIL] = now end
    run[WORKER], run[CLAIMED_AT] = run[WORKER] or 'unknown', run[CLAIMED_AT] or run[FENCE]
  else
    if run[FENCE] > now + check.YEAR then run[FENCE] = now end
    run[WORKER], run[CLAIMED_AT], run[LEASE_UNTIL] = nil, nil, 0
  end
  run[RUN_TASK], run[RUN_VERSION] = body[TASK], body[VERSION]
  run[HEAD_START], run[RUN_ENQUEUED_AT] = body[PRIORITY] * 1000000, body[ENQUEUED_AT]
  run[RUN_EXPIRES_AT] = body[EXPIRES_AT]
end

local function mend_live(id, member, body, run)
  local order_at = order_of(body, call('ZSCORE', ready, id), call('ZSCORE', due, id))
  local parked = run and run[PARKED] and call('ZSCORE', unknown, unknown_member(id, run))
  take_away(id, member, run)
  call('HDEL', ends, id)
  if run then
    agree(run, body)
    run[PARKED] = parked and true or false
    write_run(id, run)
    order_at = run[ORDER_AT]
  else
    call('HDEL', runs, id)
  end
  local running = run and run[LEASE_UNTIL] > 0
  if parked then
    call('ZADD', unknown, 0, unknown_member(id, run))
  elseif running then
    call('ZADD', leases, run[LEASE_UNTIL], id)
  else
    place(id, order_at, body[PRIORITY] * 1000000, now)
  end
  if body[EXPIRES_AT] and not running then call('ZADD', expiring, body[EXPIRES_AT], id) end
end

-- Whether a job was claimed, and nobody knows any more how often.
local function has_lost_run(id, run)
  if run or call('HEXISTS', runs, id) == 1 then return not run end
  return not call('ZSCORE', ready, id) and not call('ZSCORE', due, id)
    and (call('ZSCORE', leases, id) or call('ZSCORE', lost, id))
end

local function mend(id, member, is_odd)
  local text = call('HGET', bodies, id)
  local wrong = check.wrong(id, '', now)
  if not wrong and not is_odd then
    -- The job is sound, so the mark that led here is not its own.
    local run = check.run(call('HGET', runs, id))
    if member == '' or run and unknown_member(id, run) == member then return '' end
    return call('ZREM', unknown, member) == 1 and 'right' or ''
  end
  if not text then
    forget(id, member, nil)
    return 'removed'
  end
  if not is_id(id) then return rename(id, member) end
  mend_history(id)
  mend_lines(id)
  local body, run = check.body(text), check.run(call('HGET', runs, id))
  local ending = check.ending(call('HGET', ends, id))
  local _, _, has_ended = ended_by_mark(id)
  local is_live = run
  for _, key in pairs(check.orders) do is_live = is_live or call('ZSCORE', key, id) end
  if ending or not is_live and (has_ended or call('HEXISTS', ends, id) == 1) then
    if body and is_odd then
      body[OPTIONS] = nil
      call('HSET', bodies, id, packed(body, PAYLOAD))
    end
    mend_end(id, member, body, run, ending)
  elseif body and not is_odd and not has_lost_run(id, run) then
    mend_live(id, member, body, run)
  else
    mend_end(id, member, nil, run, nil)
  end
  if check.wrong(id, '', now) then mend_end(id, member, nil, nil, nil) end
  local after = check.ending(call('HGET', ends, id))
  return not ending and after and after[REASON] == 'unreadable' and 'dead' or 'right'
end

local answers = {}
for n = 3, #ARGV, 3 do
  if check.left < 0 then break end
  answers[#answers + 1] = mend(ARGV[n], ARGV[n + 1], ARGV[n + 2] == '1')
end
return answers
