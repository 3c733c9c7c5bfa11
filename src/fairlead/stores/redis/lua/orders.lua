-- How a claim goes along the orders of a queue: what is ready, and what was lost beside it.
--
-- `claim` is what one claim knows of its queue: how many jobs it wants (`quota`), the place to go on
-- after (`after_at`, `after_id`), and how far it has come. These functions are made once. As closures they
-- would be made anew for each queue, which costs more than the commands of a claim.
local orders = {
  STEP = 200, -- A piece has so many jobs at most.
  PIECE = 1000000, -- It has about so many bytes.
  LOOK = 1000, -- A claim steps over so many jobs at most.
  READ = 8000000, -- It steps over no more jobs when it has read so many bytes.
  NONE = { taken = {} }, -- An order without jobs.
}

function orders.claim(quota, after_at, after_id)
  return {
    quota = quota, after_at = after_at, after_id = after_id,
    count = 0, bytes = 0, look = orders.LOOK,
    step = math.min(quota, 10), bytes_read = 0, bodies_read = 0,
  }
end

-- Read the next piece of an order; returns whether there is one. How many jobs it has goes by the size of those that
-- were read. It has no more than the claim still wants, and as many again as were read and not taken.
local function read_on(claim, order)
  local passed = claim.bodies_read - claim.count
  local count = math.min(claim.step, claim.quota - claim.count + passed)
  local found = call('ZRANGE', order.key, text_of(order.from), text_of(order.from + count - 1), 'WITHSCORES')
  if #found == 0 then return false end
  local ids = {}
  for n = 1, #found, 2 do ids[#ids + 1] = found[n] end
  order.from, order.ids, order.found = order.from + #ids, ids, found
  order.texts = call('HMGET', bodies, unpack(ids))
  order.states = call('HMGET', runs, unpack(ids))
  local read = 0
  for n = 1, #ids do read = read + #(order.texts[n] or '') end
  claim.bytes_read, claim.bodies_read = claim.bytes_read + read, claim.bodies_read + #ids
  local fitting = math.floor(orders.PIECE * claim.bodies_read / (claim.bytes_read + 1))
  claim.step = math.max(1, math.min(10 * claim.step, orders.STEP, fitting))
  return true
end

-- Go to the next job of an order: `id`, `score`, `text` (its body) and `state` (its run) are those of that job;
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
  order.text, order.state = order.texts[at], order.states[at]
end

-- An order at its first job that the claim has not seen.
function orders.begin(claim, key)
  local from = claim.after_at and rank_of(key, claim.after_at, claim.after_id) or 0
  local order = {
    key = key, from = from, at = 0, ids = {}, found = false, texts = false, states = false,
    id = false, score = 0, text = false, state = false, taken = {},
  }
  orders.advance(claim, order)
  if claim.after_at and order.id == claim.after_id then orders.advance(claim, order) end
  return order
end

-- Whether the job of an order comes before that of another.
function orders.is_next(order, other)
  if not order.id or not other.id then return order.id end
  if order.score ~= other.score then return order.score < other.score end
  return less(order.id, other.id)
end

-- What claims look at of a body; nothing, or an error, for what somebody damaged: called by pcall only.
function orders.read_body(text)
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

-- Bring jobs whose lease has passed into an order of their own.
function orders.lose(claim, now)
  local passed = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, orders.LOOK)
  local texts, in_order, unread = many('HMGET', runs, passed), {}, {}
  for n = 1, #passed do
    local run = run_of(texts[n])
    if run then
      in_order[#in_order + 1] = run[ORDER_AT]
      in_order[#in_order + 1] = passed[n]
      go_back(claim, run[ORDER_AT])
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
