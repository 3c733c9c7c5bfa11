-- How a claim goes along the orders of a queue: what is ready, and what was lost beside it.
--
-- `claim` is what one claim knows of its queue: who asks, how many jobs it wants (`quota`), the place to go on
-- after (`after_at`, `after_id`), and how far it has come. These functions are made once. As closures they
-- would be made anew for each queue, which costs more than the commands of a claim.
local orders = {
  PIECE = 1000000, -- A piece has about so many bytes.
  READ = 8000000, -- A claim steps over no more jobs when it has read so many bytes.
  NONE = { taken = {} }, -- An order without jobs.
}

-- Read the next piece of an order; returns whether there is one. How many jobs it has goes by the size of those that
-- were read. It has no more than the claim still wants, and as many again as were read and not taken. One more id is read,
-- to know whether there are more.
local function read_on(claim, order)
  local passed = claim.bodies_read - claim.count
  local count = math.min(claim.step, claim.quota - claim.count + passed)
  local found = call('ZRANGE', order.key, text_of(order.from), text_of(order.from + count), 'WITHSCORES')
  if #found == 0 then return false end
  local size = math.min(count, #found / 2)
  local ids = {}
  for n = 1, size do ids[n] = found[2 * n - 1] end
  order.from, order.ids, order.found, order.has_more = order.from + size, ids, found, #found > 2 * size
  order.texts = call('HMGET', bodies, unpack(ids))
  order.standings = call('HMGET', standings, unpack(ids))
  local read = 0
  for n = 1, size do read = read + #(order.texts[n] or '') end
  claim.bytes_read, claim.bodies_read = claim.bytes_read + read, claim.bodies_read + size
  local fitting = math.floor(orders.PIECE * claim.bodies_read / (claim.bytes_read + 1))
  claim.step = math.max(1, math.min(10 * claim.step, STEP, fitting))
  return true
end

-- Go to the next job of an order: `id`, `score`, `text` (its body) and `standing` are those of that job;
-- without `id` there is none.
function orders.advance(claim, order)
  local at = order.at + 1
  if at > #order.ids then
    if not read_on(claim, order) then
      order.id = false
      return
    end
    at = 1
  end
  order.at, order.id, order.score = at, order.ids[at], tonumber(order.found[2 * at])
  order.text, order.standing = order.texts[at], order.standings[at]
end

-- An order at its first job that the claim has not seen. Two tables serve all claims in turns, too.
local in_ready, in_lost, NO_IDS = {}, {}, {}

function orders.begin(claim, key)
  local from = claim.after_at and rank_of(key, claim.after_at, claim.after_id) or 0
  local order = key == lost and in_lost or in_ready
  order.key, order.from, order.at, order.ids, order.taken = key, from, 0, NO_IDS, {}
  orders.advance(claim, order)
  if claim.after_at and order.id == claim.after_id then orders.advance(claim, order) end
  return order
end

-- Whether an order has jobs after the one that it is at.
function orders.goes_on(order)
  return order.id and (order.has_more or order.at < #order.ids)
end

-- Whether the job of an order comes before that of another.
function orders.is_next(order, other)
  if not order.id or not other.id then return order.id end
  if order.score ~= other.score then return order.score < other.score end
  return less(order.id, other.id)
end

-- How many bytes the text has that is packed after a place; by pcall.
local function length_at(text, at)
  local kind, a, b, c, d = string.byte(text, at + 1, at + 5)
  if kind < 192 then return kind - 160 end
  if kind == 217 then return a end
  if kind == 218 then return a * 256 + b end
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- What claims look at of a body; nothing, or an error, for what somebody damaged: called by pcall only.
function orders.read_body(text)
  local size, count, is_plain = 1, #BODY, string.sub(text, 1, 1) == BODY_HEAD
  if not is_plain then
    size, count = opened(text)
    if count < &BODY then return end
  end
  local at, <BODY task..options> = cmsgpack.unpack_limit(text, BODY.OPTIONS, size)
  if at > 0 and is_call(<BODY task..level>) and (options == nil or type(options) == 'string') then
    -- The payload is the rest, after one to five bytes that tell its length.
    local rest = #text - at
    local bytes = is_plain and rest - (rest <= 32 and 1 or rest <= 257 and 2 or rest <= 65538 and 3 or 5)
      or length_at(text, at)
    return task, version, priority * 1000000, enqueued_at, expires_at, level,
      options and bytes + #options or bytes
  end
end

-- Bring jobs whose lease has passed into an order of their own.
function orders.lose(claim, now)
  local passed = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, LOOK)
  local texts, in_order, unread = many('HMGET', standings, passed), {}, {}
  for n = 1, #passed do
    local standing = live_of(texts[n])
    local order_at = standing and standing[STANDING.ORDER_AT]
    if not standing and level_in(call('HGET', bodies, passed[n])) > claim.level then
      order_at = number_at(texts[n], &STANDING, STANDING.ORDER_AT) or now
    end
    if order_at then
      in_order[#in_order + 1] = order_at
      in_order[#in_order + 1] = passed[n]
      go_back(claim, order_at)
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

-- When a lease ends that begins now, as a text, and what stands before and after the order_at of jobs that were never
-- claimed: it is the same for all jobs of a claim, and of the next queues in the same call.
local lease_now, lease_length, lease_worker, until_text, before_order, after_order

local function first_leases(now, lease, worker)
  if now ~= lease_now or lease ~= lease_length or worker ~= lease_worker then
    until_text = string.format('%.0f', now + lease)
    before_order = STANDING_HEAD .. cmsgpack.pack(now, now + lease, 1, 0, 0)
    after_order = cmsgpack.pack(nil, worker, now, nil, {})
    lease_now, lease_length, lease_worker = now, lease, worker
  end
  return until_text, before_order, after_order
end

-- What a first standing ends with: no end, its level, and nothing attached.
local NO_END = nil<STANDING state..result>
local FIRST_TAIL = NO_END .. '\1\0'

-- What a claim begins with. All claims use one table in turns: to make one costs more than the commands of a claim.
local claim = {}

function orders.claim(now, worker, lease, level, capable, spare, quota, after_at, after_id)
  claim.until_when, claim.before, claim.after = first_leases(now, lease, worker)
  claim.now, claim.worker, claim.lease, claim.level = now, worker, lease, level
  claim.capable, claim.spare, claim.quota = capable, spare, quota
  claim.after_at, claim.after_id = after_at, after_id
  claim.count, claim.bytes, claim.look, claim.step = 0, 0, LOOK, math.min(quota, 10)
  claim.bytes_read, claim.bodies_read = 0, 0
  claim.stepped, claim.from_lost, claim.is_paused = false, false, false
  return claim
end

-- Move on what waits for its time. Most of the time nothing waits but in the order, and nothing is to be moved on. The keys
-- that a plain claim writes are read first. Before it writes any other, it asks for all; and now and then, because whoever
-- runs a job must be able to write its end.
function orders.move_on(claim)
  local now, level, sound = claim.now, claim.level, sound_at[ready]
  if not sound or now - sound >= 5000000 or now < sound then
    ask_for_all()
    note_sound(ready, now)
  end
  local leased_at, due_at, expires_at, were_lost, are_parked = first_at(leases), LATEST, LATEST, 0, 0
  if call('EXISTS', due, expiring, lost, parked, paused) > 0 then
    due_at, expires_at = first_at(due), first_expiry(now, level)
    were_lost, are_parked = call('ZCARD', lost), call('ZCARD', parked)
    claim.is_paused = call('HEXISTS', paused, 'since') == 1
  end
  local soon = math.min(due_at, leased_at, expires_at)
  if soon <= now or are_parked > 0 then ask_for_all() end
  claim.leaves_due = due_at <= now and promote(now, STEP, claim) >= STEP
  local back = are_parked > 0 and bring_known(claim.capable, now, STEP, level, claim) or 0
  if expires_at <= now then expire(now, STEP, level) end
  if leased_at <= now then orders.lose(claim, now) end
  claim.soon, claim.has_moved = soon, soon <= now or back > 0
  claim.has_lost = claim.has_moved or were_lost > 0
  claim.spares_some = claim.spare and (were_lost > 0 or leased_at <= now)
end

-- What is answered if no job can be given, however many there are.
function orders.nothing(claim)
  local waits = not claim.is_paused and (claim.has_moved or call('EXISTS', ready, lost) > 0)
  local soon = until_due(claim.soon, claim.now, claim.level)
  local answer = { claim.now, waits and 1 or 0, 0, soon, 0 }
  -- What came to stand before the place is seen from the front only.
  if claim.after_at and claim.after_id == '' then answer[6], answer[7], answer[8] = {}, {}, {} end
  return answer
end

-- Ask the gates about the job that an order is at. Answers how it stands if it is given, whether it is stepped over,
-- how many bytes it brings, and when it expires.
function orders.consider(claim, order)
  local now, id, score = claim.now, order.id, order.score
  local standing = order.standing and live_of(order.standing)
  local is_lost = standing and standing[STANDING.LEASE_UNTIL] > 0
  local is_damaged = not standing and (order.standing or order.key == lost)
  local is_read, task, version, head_start, enqueued_at, expires_at, level, bytes
  if order.text then
    is_read, task, version, head_start, enqueued_at, expires_at, level, bytes =
      pcall(orders.read_body, order.text)
  end
  -- What has no name by which anybody could settle it would be stepped over for ever.
  if not is_read or not task or is_damaged or not is_id(id) then
    if level_in(order.text) > claim.level then return nil, true end
    ask_for_all()
    order.from = order.from - call('ZREM', order.key, id)
    put_aside(id, standing, now)
    return nil, true
  elseif is_lost and standing[STANDING.LEASE_UNTIL] > now then
    return nil, false -- The clock went back, and it runs again.
  elseif level > claim.level or not is_lost and expires_at and expires_at <= now
      or score + head_start > now or is_lost and claim.spare then
    return nil, true
  elseif claim.capable and (claim.capable[task] or 0) < version then
    claim.stepped = claim.stepped or {}
    claim.stepped[#claim.stepped + 1] = { id, task, version }
    return nil, true
  elseif standing then
    if is_lost then
      claim.from_lost = claim.from_lost or {}
      claim.from_lost[#claim.from_lost + 1] = id
    else
      standing[STANDING.ATTEMPT] = standing[STANDING.ATTEMPT] + 1
      standing[STANDING.WORKER], standing[STANDING.CLAIMED_AT] = claim.worker, now
    end
    standing[STANDING.FENCE] = math.max(standing[STANDING.FENCE] + 1, now)
    standing[STANDING.LEASE_UNTIL] = now + claim.lease
    return packed(standing, #STANDING), false, bytes, expires_at
  end
  if not is_whole(score) then score = enqueued_at - head_start end
  return claim.before .. cmsgpack.pack(score) .. claim.after
    .. cmsgpack.pack(task, version, head_start, enqueued_at, expires_at)
    .. (level == 1 and FIRST_TAIL or NO_END .. cmsgpack.pack(level, 0)), false, bytes, expires_at
end
