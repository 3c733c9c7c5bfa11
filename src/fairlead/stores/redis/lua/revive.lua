#!lua flags=allow-oom
-- Let jobs run again, or sooner, if they are in one of these states. A waiting one that is due
-- keeps its place, and a running one is left alone.
--   ARGV: now, ids, states, who does it (see write_act), channel, word to tell there
--   answers the ids of those that were revived, and how many it looked at before it had read enough
local now, states = clock(ARGV[1]), set_of(ARGV[3])
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('revive', ARGV[2], ARGV[3])
local past, missed = past_of(ARGV[4], mark)
if past then return { past_ids(ids, past, missed), past } end

-- Forget an expiry that has passed; any other is watched again.
local function renew_expiry(id, body, run)
  if not body[EXPIRES_AT] then return end
  if body[EXPIRES_AT] <= now then
    body[EXPIRES_AT], run[RUN_EXPIRES_AT] = nil, nil
    call('HSET', bodies, id, packed(body, PAYLOAD))
    call('ZREM', expiring, id)
  else
    call('ZADD', expiring, body[EXPIRES_AT], id)
  end
end

-- How a job stands that begins anew; its fence and its lines go on. Who crashed begins alone.
local function anew(body, past, shared_deaths)
  local run = first_run(body, now - body[PRIORITY] * 1000000)
  run[FENCE], run[LINES] = past[FENCE], past[LINES]
  run[SHARED_DEATHS] = past[CRASHES] > 0 and math.max(shared_deaths, ALONE) or shared_deaths
  return run
end

local function hasten(id, body)
  local past = live_run(id)
  if not past or past[LEASE_UNTIL] > 0 or past[ORDER_AT] + past[HEAD_START] <= now then
    return false
  end
  local run = anew(body, past, past[SHARED_DEATHS])
  run[PARKED] = past[PARKED]
  if not run[PARKED] then
    displace(id, past)
    place(id, run[ORDER_AT], run[HEAD_START], now)
  end
  renew_expiry(id, body, run)
  if call('HEXISTS', runs, id) == 1 then write_run(id, run) end
  return true
end

local function again(id, body)
  local past = end_in(id, states)
  if not past then return false end
  local run = anew(body, past, 0)
  call('HDEL', ends, id)
  call('ZREM', final[past[STATE]], id)
  renew_expiry(id, body, run)
  write_run(id, run)
  place(id, run[ORDER_AT], run[HEAD_START], now)
  return true
end

local touched, looked, left = {}, 0, MOST_READ
for _, id in ipairs(ids) do
  if left < 0 then break end
  local text = call('HGET', bodies, id) or ''
  looked, left = looked + 1, left - #text
  local body = body_of(text)
  if body and ((states.waiting and hasten(id, body)) or again(id, body)) then
    touched[#touched + 1] = id
  end
end
write_act(ARGV[4], #touched, now, nil, mark, looked, missed_in(ids, looked, touched))
if #touched > 0 then tell(ARGV[5], ARGV[6]) end
return { touched, looked }
