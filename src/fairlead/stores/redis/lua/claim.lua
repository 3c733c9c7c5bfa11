#!lua flags=allow-oom
-- Give a worker up to `quota` jobs of this queue, in order. What shares of several queues are
-- right is told by the selection rule, which the caller runs; the gates are the same ones.
--   ARGV: now, worker, lease, quota, capable (task -> version, '' for any), spare lost ones (1),
--         asked_at, order_at and id of the place to go on after
--   answers now, ids, bodies, runs, whether there may be more, place to go on after next time,
--         ids of jobs stepped over for their task, ids of those that were taken over as lost
local now = clock(ARGV[1])
local worker, lease, quota = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local capable = ARGV[5] ~= '' and cmsgpack.unpack(ARGV[5]) or nil
local spare = ARGV[6] == '1' or (ARGV[7] ~= '' and now - ARGV[7] >= math.floor(lease / 2))
local STEP, LOOK = 200, 1000

local more = promote(now, STEP) >= STEP
bring_back(capable, now, STEP)
expire(now, STEP)

-- Jobs whose lease has passed come into an order of their own.
local passed = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, LOOK)
if #passed > 0 then
  local texts, in_order = many('HMGET', runs, passed), {}
  for n = 1, #passed do
    if texts[n] then
      in_order[#in_order + 1] = cmsgpack.unpack(texts[n])[ORDER_AT]
      in_order[#in_order + 1] = passed[n]
    else
      call('ZADD', ready, 0, passed[n])  -- Somebody damaged it. It has waited long enough.
    end
  end
  many('ZADD', lost, in_order)
  many('ZREM', leases, passed)
end

if quota == 0 or call('HEXISTS', settings, 'paused') == 1 then
  return { now, {}, {}, {}, 0, {}, {}, {} }
end

-- The jobs of one order, one after the other, read a piece at a time.
local function heads(key, after_at, after_id)
  local ids, scores, texts, states, at, from = {}, {}, {}, {}, 0, 0
  local step = math.min(math.max(quota, 10), STEP)
  if after_at then from = call('ZCOUNT', key, '-inf', '(' .. after_at) end
  local function next_head()
    if at == #ids then
      local found = call('ZRANGE', key, from, from + step - 1, 'WITHSCORES')
      if #found == 0 then return nil end
      from, at, ids, scores = from + step, 0, {}, {}
      for n = 1, #found, 2 do
        ids[#ids + 1] = found[n]
        scores[#scores + 1] = tonumber(found[n + 1])
      end
      texts, states = call('HMGET', bodies, unpack(ids)), call('HMGET', runs, unpack(ids))
    end
    at = at + 1
    return { ids[at], scores[at], texts[at], states[at] }
  end
  local function next_after()
    local head = next_head()
    while head and after_at and head[2] == after_at and not less(after_id, head[1]) do head = next_head() end
    return head
  end
  return next_after
end

-- What holds a job back: nil if nothing does, 'task' if it is for others, else another gate.
local function gate(head, body, run)
  local is_lost = run and run[LEASE_UNTIL] > 0
  if not is_lost and body[EXPIRES_AT] and body[EXPIRES_AT] <= now then return 'expired' end
  if head[2] + body[PRIORITY] * 1000000 > now then return 'not due' end
  if is_lost and spare then return 'spared' end
  if capable and (capable[body[TASK]] or 0) < body[VERSION] then return 'task' end
  return nil
end

local after_at = ARGV[8] ~= '' and tonumber(ARGV[8]) or nil
local next_ready, next_lost = heads(ready, after_at, ARGV[9]), heads(lost, after_at, ARGV[9])
local a, b = next_ready(), next_lost()
local ids, given, written, stepped, stop = {}, {}, {}, {}, {}
local from_ready, from_lost, until_when, write = {}, {}, {}, {}
local look = LOOK
while #ids < quota and (a or b) do
  local head
  if a and (not b or a[2] < b[2] or (a[2] == b[2] and less(a[1], b[1]))) then
    head, a = a, next_ready()
  else
    head, b = b, next_lost()
  end
  local id, body = head[1], head[3] and body_of(head[3])
  local run = head[4] and cmsgpack.unpack(head[4])
  if not body then
    -- Somebody damaged it: a dead letter if something is left of it, and nothing if not.
    call('ZREM', ready, id)
    call('ZREM', lost, id)
    call('ZREM', expiring, id)
    call('HDEL', runs, id)
    if head[3] then
      run = run or first_run({ '?', 0, '', nil, 0, now }, head[2])
      finish(id, run, 'dead', now, 'unreadable', nil)
    end
  elseif not (run and run[LEASE_UNTIL] > now) then
    local held = gate(head, body, run)
    if held then
      if held == 'task' then stepped[#stepped + 1] = id end
      look = look - 1
      if look == 0 then
        stop = { string.format('%.0f', head[2]), id }
        break
      end
    else
      run = run or first_run(body, head[2])
      if run[LEASE_UNTIL] > 0 then
        from_lost[#from_lost + 1] = id
      else
        from_ready[#from_ready + 1] = id
        run[ATTEMPT] = run[ATTEMPT] + 1
        run[WORKER], run[CLAIMED_AT] = worker, now
      end
      run[FENCE] = math.max(run[FENCE] + 1, now)
      run[LEASE_UNTIL] = now + lease
      local text = packed_run(run)
      ids[#ids + 1], given[#given + 1], written[#written + 1] = id, head[3], text
      until_when[#until_when + 1] = run[LEASE_UNTIL]
      until_when[#until_when + 1] = id
      write[#write + 1] = id
      write[#write + 1] = text
      if body[EXPIRES_AT] then call('ZREM', expiring, id) end
    end
  end
end
many('ZREM', ready, from_ready)
many('ZREM', lost, from_lost)
many('ZADD', leases, until_when)
many('HSET', runs, write)
more = more or a or b
return { now, ids, given, written, more and 1 or 0, stop, stepped, from_lost }
