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

-- Whether a value is a whole number, as every number here is.
local function is_whole(value)
  return type(value) == 'number' and value % 1 == 0
end

local function is_text(value)
  return type(value) == 'string'
end

-- The body of a job, or nil for what somebody damaged.
local function body_of(text)
  local is_read, body = pcall(cmsgpack.unpack, text)
  if is_read and string.sub(text, 1, #BODY) == BODY and is_text(body[TASK])
      and is_whole(body[VERSION]) and is_whole(body[PRIORITY]) and is_whole(body[ENQUEUED_AT])
      and (body[EXPIRES_AT] == nil or is_whole(body[EXPIRES_AT]))
      and (body[OPTIONS] == nil or is_text(body[OPTIONS])) and is_text(body[PAYLOAD]) then
    return body
  end
  return nil
end

-- The same of a run.
local function run_of(text)
  local is_read, run = pcall(cmsgpack.unpack, text or '')
  if not is_read or string.sub(text or '', 1, #RUN) ~= RUN then return nil end
  for _, field in ipairs({
    FENCE, LEASE_UNTIL, ATTEMPT, CRASHES, ORDER_AT, RUN_VERSION, HEAD_START, RUN_ENQUEUED_AT,
  }) do
    if not is_whole(run[field]) then return nil end
  end
  if type(run[SUSPECT]) ~= 'boolean' or type(run[PARKED]) ~= 'boolean'
      or type(run[LINES]) ~= 'table' or not is_text(run[RUN_TASK])
      or not (run[WORKER] == nil or is_text(run[WORKER]))
      or not (run[CLAIMED_AT] == nil or is_whole(run[CLAIMED_AT]))
      or not (run[CANCEL] == nil or is_text(run[CANCEL]))
      or not (run[RUN_EXPIRES_AT] == nil or is_whole(run[RUN_EXPIRES_AT])) then
    return nil
  end
  return run
end

local function first_run(body, order_at)
  return {
    0, 0, 0, 0, false, order_at, false, nil, nil, nil, {}, body[TASK], body[VERSION],
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

-- The end of a run, as it is kept. The first fields stay as they are.
local function end_of(run, state, now, reason, result)
  return END .. cmsgpack.pack(
    run[FENCE], 0, run[ATTEMPT], run[CRASHES], run[SUSPECT], run[ORDER_AT], false,
    run[WORKER] or null, run[CLAIMED_AT] or null, null, run[LINES], state, now,
    reason or null, result or null
  )
end

-- Move a job out of the line; its place and its run are gone already.
local function finish(id, run, state, now, reason, result)
  call('HSET', ends, id, end_of(run, state, now, reason, result))
  call('ZADD', final[state], now, id)
end

-- Put a damaged job aside: a dead letter if something is left of it, and nothing if not.
local function put_aside(id, run, now)
  call('HDEL', runs, id)
  call('ZREM', expiring, id)
  if call('HEXISTS', bodies, id) == 1 then finish(id, run, 'dead', now, 'unreadable', nil) end
end

-- The run of a live job that may never have been claimed; nil if it is not live.
local function live_run(id)
  local run = run_of(call('HGET', runs, id))
  if run then return run end
  local order_at = call('ZSCORE', ready, id)
  local run_at = not order_at and call('ZSCORE', due, id)
  if not order_at and not run_at then return nil end
  local body = body_of(call('HGET', bodies, id) or '')
  if not body then return nil end
  if run_at then order_at = run_at - body[PRIORITY] * 1000000 end
  return first_run(body, tonumber(order_at))
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

-- Put jobs whose time has come into the order, at the place they have kept.
local function promote(now, most)
  local ids = call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local placed, promoted = {}, {}
  for n = 1, #ids, 2 do
    local body = body_of(call('HGET', bodies, ids[n]) or '')
    placed[#placed + 1] = ids[n + 1] - (body and body[PRIORITY] or 0) * 1000000
    placed[#placed + 1] = ids[n]
    promoted[#promoted + 1] = ids[n]
  end
  many('ZADD', ready, placed)
  many('ZREM', due, promoted)
  return #promoted
end

-- Cancel waiting jobs that must not start any more.
local function expire(now, most)
  local ids = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, most)
  for n = 1, #ids do
    local run = live_run(ids[n])
    if run then
      displace(ids[n], run)
      call('HDEL', runs, ids[n])
      finish(ids[n], run, 'cancelled', now, 'expired', nil)
    end
  end
  many('ZREM', expiring, ids)
  return #ids
end

-- Bring back jobs that were parked, now that somebody knows their tasks; nil knows them all.
local function bring_back(capable, now, most)
  if call('ZCARD', unknown) == 0 then return 0 end
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
      end
    else
      call('ZADD', ready, 0, id) -- Somebody damaged it; the next claim sees what is left.
    end
  end
  many('ZREM', unknown, members)
  return #members
end

-- What is kept of a job: its body, run, end, failed runs, and its score in ready and in due.
local function kept(id)
  return {
    call('HGET', bodies, id), call('HGET', runs, id), call('HGET', ends, id),
    call('HGET', errors, id), call('ZSCORE', ready, id), call('ZSCORE', due, id),
  }
end

-- The end of a job, if it is in one of these final states; else nil.
local function end_in(id, states)
  local text = call('HGET', ends, id)
  local is_read, ending = pcall(cmsgpack.unpack, text or '')
  if is_read and type(ending) == 'table' and ending[STATE] and states[ending[STATE]]
      and final[ending[STATE]] and is_whole(ending[FENCE]) and is_whole(ending[CRASHES])
      and type(ending[LINES]) == 'table' then
    return ending
  end
  return nil
end

-- A list of words as a set of them.
local function set_of(text)
  local set = {}
  for _, word in ipairs(cmsgpack.unpack(text)) do set[word] = true end
  return set
end

-- Tell on a channel that something changed; no word, no news.
local function tell(channel, word)
  if word ~= '' then call('PUBLISH', channel, word) end
end

-- Write down what a person did; calls of one action are one line with one count.
--   text: [id, number, who, verb, target, job_id], or '' if there is nothing to write
local function write_act(text, count, now, before)
  local by = cmsgpack.unpack(text)
  local known = call('HGET', acted, by[1])
  local line = known and cmsgpack.unpack(known)
  if line and (line[6] or before) then -- Each edit keeps what it replaced.
    by[1], line = by[1] .. ' ' .. by[2], nil
  end
  if line then
    line[5], line[7] = line[5] + count, nil
  else
    line = { now, by[3], by[4], by[5], count, before, by[6] }
    call('ZADD', acts, by[2], by[1])
  end
  call('HSET', acted, by[1], packed(line, 7))
end

