#!lua flags=allow-oom
-- Move on what waits for its time, and give a worker up to `quota` jobs of this queue, in order. What shares of several queues are
-- right is told by the selection rule, which the caller runs; the gates are the same ones.
--   ARGV: now, worker, lease, capable (task -> version, '' for any), spare lost ones (1), asked_at;
--         quota, how many bytes of payload and options to bring, and the job that reaches it,
--         order_at and id of the place to go on after
--   answers now, whether there may be more (2: it had enough bytes, 3: it stepped over as many as it
--         may), bytes of payload and options that are brought, in how many microseconds something falls
--         due (-1 if nothing does), ids, bodies, runs; and only if there is any of it, order_at and id of
--         the last job it looked at and how many it stepped over, unless it came to the end, id, task and
--         version of jobs stepped over for their task, and ids of those that were taken over as lost
local now = clock(ARGV[1])
local worker, lease = name_of(ARGV[2]), count_of(ARGV[3], LATEST - now)
local capable = capable_of(ARGV[4])
local spare = ARGV[5] == '1' or (ARGV[6] ~= '' and now - ARGV[6] >= math.floor(lease / 2))
local quota = count_of(ARGV[7], 500)
-- `READ` bounds the bytes of bodies that one claim looks at, `PIECE` those it reads at once.
local STEP, LOOK, READ, PIECE = 200, 1000, 8000000, 1000000
local most_bytes, bytes = count_of(ARGV[8]), 0

local after_at, after_id = ARGV[9] ~= '' and tonumber(ARGV[9]) or nil, ARGV[10]

-- What comes to stand before the place to go on after is looked at as well.
local function stands(order_at)
  if after_at and order_at <= after_at then after_at, after_id = order_at, '' end
end

-- Most of the time nothing waits but in the order, and nothing is to be moved on. The keys that a plain claim
-- writes are read first. Before it writes any other, it asks for all; and now and then, because whoever
-- runs a job must be able to write its end.
local sound = sound_at[ready]
if not sound or now - sound >= 5000000 or now < sound then
  ask_for_all()
  note_sound(ready, now)
end
local is_paused = call('HEXISTS', settings, 'paused') == 1
local in_line, leased_at = call('ZCARD', ready), first_at(leases)
local due_at, expires_at, were_lost, are_parked = LATEST, LATEST, 0, 0
if call('EXISTS', due, expiring, lost, unknown) > 0 then
  due_at, expires_at = first_at(due), first_at(expiring)
  were_lost, are_parked = call('ZCARD', lost), call('ZCARD', unknown)
end
local soon = math.min(due_at, leased_at, expires_at)
if soon <= now or are_parked > 0 then ask_for_all() end
local more = due_at <= now and promote(now, STEP, stands) >= STEP
local back = are_parked > 0 and bring_back(capable, now, STEP, stands) or 0
if expires_at <= now then expire(now, STEP) end

-- Jobs whose lease has passed come into an order of their own.
if leased_at <= now then
  local passed = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, LOOK)
  local texts, in_order, unread = many('HMGET', runs, passed), {}, {}
  for n = 1, #passed do
    local run = run_of(texts[n])
    if run then
      in_order[#in_order + 1] = run[ORDER_AT]
      in_order[#in_order + 1] = passed[n]
      stands(run[ORDER_AT])
    else
      unread[#unread + 1] = passed[n]
    end
  end
  many('ZADD', lost, in_order)
  many('ZREM', leases, passed)
  spend(#passed, 0)
  -- Somebody damaged them: nobody knows how often they ran, and whether they still do.
  for n = 1, #unread do put_aside(unread[n], nil, now) end
end

-- In how many microseconds something falls due; what was moved on is looked for again.
local function waits()
  if soon <= now then return soonest(now) or -1 end
  return soon < LATEST and soon - now or -1
end

-- Whether there may be more than so many; after something was moved on, there may.
local function exceeds(count)
  return soon <= now or back > 0 or in_line + were_lost > count
end

if is_paused or quota == 0 then
  return { now, not is_paused and exceeds(0) and 1 or 0, 0, waits(), {}, {}, {}, {}, {}, {} }
end

-- The jobs of one order, one after the other, read a piece at a time: `id`, `score`, `text` (its
-- body) and `state` (its run) are those of the job that is next; without `id` there is none.
-- How many bodies are read at once goes by the size of those that were read.
local step, bytes_read, bodies_read = math.min(quota, 10), 0, 0

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
    order.from, order.at, order.ids, order.scores = order.from + #ids, 1, ids, scores
    order.texts = call('HMGET', bodies, unpack(ids))
    order.states = call('HMGET', runs, unpack(ids))
    for n = 1, #ids do bytes_read = bytes_read + #(order.texts[n] or '') end
    bodies_read = bodies_read + #ids
    local fitting = math.floor(PIECE * bodies_read / (bytes_read + 1))
    step = math.max(1, math.min(10 * step, STEP, fitting))
  end
  local at = order.at
  order.id, order.score = order.ids[at], tonumber(order.scores[at])
  order.text, order.state = order.texts[at], order.states[at]
end

local function begin(key)
  local from = after_at and rank_of(key, after_at, after_id) or 0
  local order = { key = key, from = from, at = 0, ids = {}, taken = {} }
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

-- What claims look at of a body; nothing, or an error, for what somebody damaged.
local function read(text)
  local at, task, version, priority, enqueued_at, expires_at, options =
    cmsgpack.unpack_limit(text, OPTIONS, #BODY)
  if at > 0 and string.sub(text, 1, #BODY) == BODY
      and is_call(task, version, priority, enqueued_at, expires_at)
      and (options == nil or type(options) == 'string') then
    -- The payload is the rest, after one to five bytes that tell its length.
    local rest = #text - at
    local size = rest - (rest <= 32 and 1 or rest <= 257 and 2 or rest <= 65538 and 3 or 5)
    return task, version, priority * 1000000, enqueued_at, expires_at, size + #(options or '')
  end
end

local in_ready = begin(ready)
local in_lost = exceeds(in_line) and begin(lost) or { taken = {} }
local ids, given, written, stepped, stop = {}, {}, {}, {}, {}
local from_lost, until_when, write, unexpiring = {}, {}, {}, {}
local look, why = LOOK, 0
local until_text, before, between = first_runs(now, lease, worker)

local function take(order, id, text, state, size)
  local n = #ids + 1
  order.taken[#order.taken + 1] = id
  bytes = bytes + size
  ids[n], given[n], written[n] = id, text, state
  until_when[2 * n - 1], until_when[2 * n] = until_text, id
  write[2 * n - 1], write[2 * n] = id, state
end

while in_ready.id or in_lost.id do
  local order = is_next(in_ready, in_lost) and in_ready or in_lost
  local id, score, text = order.id, order.score, order.text
  local run = order.state and run_of(order.state)
  local is_lost = run and run[LEASE_UNTIL] > 0
  local is_damaged = not run and (order.state or order == in_lost)
  local is_read, task, version, head_start, enqueued_at, expires_at, size
  if text then is_read, task, version, head_start, enqueued_at, expires_at, size = pcall(read, text) end
  local is_held = false
  -- What has no name by which anybody could settle it would be stepped over for ever.
  if not is_read or not task or is_damaged or not is_id(id) then
    ask_for_all()
    order.from = order.from - call('ZREM', order.key, id)
    put_aside(id, run, now)
    is_held = true
  elseif is_lost and run[LEASE_UNTIL] > now then
    is_held = false -- The clock went back, and it runs again.
  elseif not is_lost and expires_at and expires_at <= now or score + head_start > now
      or is_lost and spare then
    is_held = true
  elseif capable and (capable[task] or 0) < version then
    is_held = true
    stepped[#stepped + 1] = { id, task, version }
  elseif run then
    if is_lost then
      from_lost[#from_lost + 1] = id
    else
      run[ATTEMPT], run[WORKER], run[CLAIMED_AT] = run[ATTEMPT] + 1, worker, now
    end
    run[FENCE], run[LEASE_UNTIL] = math.max(run[FENCE] + 1, now), now + lease
    take(order, id, text, packed_run(run), size)
  else
    if not is_whole(score) then score = enqueued_at - head_start end
    take(order, id, text, before .. cmsgpack.pack(score) .. between .. cmsgpack.pack(
      task, version, head_start, enqueued_at, expires_at or null), size)
  end
  if expires_at and ids[#ids] == id then unexpiring[#unexpiring + 1] = id end
  if is_held then
    look = look - 1
    if look == 0 or bytes_read > READ then why = 3 end
  elseif bytes >= most_bytes then
    why = 2
  elseif #ids >= quota then
    why = 1
  end
  if why > 0 then
    if after_at or look < LOOK then
      stop = { string.format('%.0f', is_whole(score) and score or now), id, LOOK - look }
    end
    break
  end
  advance(order)
end
many('ZREM', ready, in_ready.taken)
many('ZREM', lost, in_lost.taken)
many('ZREM', expiring, unexpiring)
many('ZADD', leases, until_when)
many('HSET', runs, write)
-- Those that are spared are left for others, or for later.
if why > 0 and not exceeds(#ids) then why = 0 end
if why == 0 and (more or spare and (were_lost > 0 or leased_at <= now)) then why = 1 end
if #ids > 0 then soon = math.min(soon, now + lease) end
spend(LOOK - look + #ids, bytes_read)
local answer = { now, why, bytes, waits(), ids, given, written }
if after_at or look < LOOK or #from_lost > 0 then
  answer[8], answer[9], answer[10] = stop, stepped, from_lost
end
return answer
