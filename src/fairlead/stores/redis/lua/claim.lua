#!lua flags=allow-oom
-- Give a worker up to `quota` jobs of this queue, in order. What shares of several queues are
-- right is told by the selection rule, which the caller runs; the gates are the same ones.
--   ARGV: now, worker, lease, quota, capable (task -> version, '' for any), spare lost ones (1),
--         asked_at, order_at and id of the place to go on after, whether there is room for it (1)
--   answers now, ids, bodies, runs, whether there may be more, place to go on after next time,
--         id, task and version of jobs stepped over for their task, ids of those that were taken
--         over as lost
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
    local run = run_of(texts[n])
    if run then
      in_order[#in_order + 1] = run[ORDER_AT]
      in_order[#in_order + 1] = passed[n]
    else
      call('ZADD', ready, 0, passed[n])  -- Somebody damaged it. It has waited long enough.
    end
  end
  many('ZADD', lost, in_order)
  many('ZREM', leases, passed)
end

if ARGV[10] ~= '1' or call('HEXISTS', settings, 'paused') == 1 then
  return { now, {}, {}, {}, 0, {}, {}, {} }
end

-- The jobs of one order, one after the other, read a piece at a time: `id`, `score`, `text` (its
-- body) and `state` (its run) are those of the job that is next; without `id` there is none.
local step = math.min(math.max(quota, 10), STEP)
local after_at, after_id = ARGV[8] ~= '' and tonumber(ARGV[8]) or nil, ARGV[9]

local function advance(order)
  order.at = order.at + 1
  if order.at > #order.ids then
    local found = call('ZRANGE', order.key, order.from, order.from + step - 1, 'WITHSCORES')
    order.id = nil
    if #found == 0 then return end
    local ids, scores = {}, {}
    for n = 1, #found, 2 do
      ids[#ids + 1], scores[#scores + 1] = found[n], found[n + 1]
    end
    order.from, order.at, order.ids, order.scores = order.from + step, 1, ids, scores
    order.texts = call('HMGET', bodies, unpack(ids))
    order.states = call('HMGET', runs, unpack(ids))
  end
  local at = order.at
  order.id, order.score = order.ids[at], tonumber(order.scores[at])
  order.text, order.state = order.texts[at], order.states[at]
end

local function begin(key)
  local from = after_at and rank_of(key, after_at, after_id) or 0
  local order = { key = key, from = from, at = 0, ids = {} }
  advance(order)
  if after_at and order.id == after_id then advance(order) end
  return order
end

-- Whether the job of an order comes before that of another.
local function is_next(order, other)
  if not order.id or not other.id then return order.id ~= nil end
  if order.score ~= other.score then return order.score < other.score end
  return less(order.id, other.id)
end

-- What claims look at of a body; nil for what somebody damaged.
local function read(text)
  local is_read, _, task, version, priority, enqueued_at, expires_at =
    pcall(cmsgpack.unpack_limit, text, EXPIRES_AT, #BODY)
  if is_read and string.sub(text, 1, #BODY) == BODY and is_text(task)
      and is_whole(version) and is_whole(priority) and is_whole(enqueued_at)
      and (expires_at == nil or is_whole(expires_at)) then
    return task, version, priority * 1000000, enqueued_at, expires_at
  end
  return nil
end

local in_ready, in_lost = begin(ready), begin(lost)
local ids, given, written, stepped, stop = {}, {}, {}, {}, {}
local from_ready, from_lost, until_when, write = {}, {}, {}, {}
local look = LOOK
-- A first run is the same for all but for its order_at and what is of its body.
local until_text = string.format('%.0f', now + lease)
local before = RUN .. cmsgpack.pack(now, now + lease, 1, 0, false)
local between = cmsgpack.pack(false, worker, now, null, {})

local function take(id, text, state)
  local n = #ids + 1
  ids[n], given[n], written[n] = id, text, state
  until_when[2 * n - 1], until_when[2 * n] = until_text, id
  write[2 * n - 1], write[2 * n] = id, state
end

-- Goes on to the first job that will have to wait for a slot: those before it that nobody knows are
-- parked, as if the queue were looked at by itself.
while in_ready.id or in_lost.id do
  local order = is_next(in_ready, in_lost) and in_ready or in_lost
  local id, score, text = order.id, order.score, order.text
  local run = run_of(order.state)
  local is_lost = run and run[LEASE_UNTIL] > 0
  local task, version, head_start, enqueued_at, expires_at
  if text then task, version, head_start, enqueued_at, expires_at = read(text) end
  local is_held = false
  if not task then
    -- Somebody damaged it: a dead letter if something is left of it, and nothing if not.
    order.from = order.from - call('ZREM', order.key, id)
    put_aside(id, run or { 0, 0, 0, 0, false, score, false, nil, nil, nil, {} }, now)
    is_held = true
  elseif is_lost and run[LEASE_UNTIL] > now then
    is_held = false -- The clock went back, and it runs again.
  elseif not is_lost and expires_at and expires_at <= now or score + head_start > now
      or is_lost and spare then
    is_held = true
  elseif capable and (capable[task] or 0) < version then
    is_held = true
    stepped[#stepped + 1] = { id, task, version }
  elseif #ids >= quota then
    break
  elseif run then
    if is_lost then
      from_lost[#from_lost + 1] = id
    else
      from_ready[#from_ready + 1] = id
      run[ATTEMPT], run[WORKER], run[CLAIMED_AT] = run[ATTEMPT] + 1, worker, now
    end
    run[FENCE], run[LEASE_UNTIL] = math.max(run[FENCE] + 1, now), now + lease
    take(id, text, packed_run(run))
  else
    from_ready[#from_ready + 1] = id
    take(id, text, before .. cmsgpack.pack(score) .. between .. cmsgpack.pack(
      task, version, head_start, enqueued_at, expires_at or null))
  end
  if expires_at and ids[#ids] == id then call('ZREM', expiring, id) end
  if is_held then
    look = look - 1
    if look == 0 then
      stop = { string.format('%.0f', score), id }
      break
    end
  end
  advance(order)
end
many('ZREM', ready, from_ready)
many('ZREM', lost, from_lost)
many('ZADD', leases, until_when)
many('HSET', runs, write)
more = more or in_ready.id or in_lost.id
return { now, ids, given, written, more and 1 or 0, stop, stepped, from_lost }
