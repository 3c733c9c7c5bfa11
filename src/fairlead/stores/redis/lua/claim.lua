#!lua flags=allow-oom
-- Move on what waits for its time, and give a worker up to `quota` jobs of this queue, in order. What shares of several queues are
-- right is told by the selection rule, which the caller runs; the gates are the same ones.
--   ARGV: now, worker, lease, capable (task -> version, '' for any), spare lost ones (1), asked_at, level;
--         quota, how many bytes of payload and options to bring, and the job that reaches it,
--         order_at and id of the place to go on after
--   answers now, whether there may be more (2: it had enough bytes, 3: it stepped over as many as it
--         may), bytes of payload and options that are brought, in how many microseconds something falls
--         due (-1 if nothing does), how many jobs, id, body and standing of each; and three lists, if one has
--         something in it or the claim went on from a place: order_at and id of the last job it looked at
--         and how many it stepped over, unless it came to the end; id, task and version of jobs stepped over
--         for their task; ids of those taken over as lost. Lists in a list are dear, so jobs have none.
local now = clock(ARGV[1])
local worker, lease = name_of(ARGV[2]), count_of(ARGV[3], LATEST - now)
local spare = ARGV[5] == '1' or (ARGV[6] ~= '' and now - ARGV[6] >= math.floor(lease / 2))
local most_bytes = count_of(ARGV[9])
local claim = orders.claim(
  now, worker, lease, count_of(ARGV[7]), capable_of(ARGV[4]), spare, count_of(ARGV[8], 500),
  ARGV[10] ~= '' and tonumber(ARGV[10]) or nil, ARGV[11]
)
orders.move_on(claim)
if claim.is_paused or claim.quota == 0 then return orders.nothing(claim) end

local in_ready = orders.begin(claim, ready)
local in_lost = claim.has_lost and orders.begin(claim, lost) or orders.NONE
local answer, stop, why = { now, 0, 0, 0, 0 }, {}, 0
local until_when, write, unexpiring = {}, {}, {}
local until_text, quota = claim.until_when, claim.quota

while in_ready.id or in_lost.id do
  local order = orders.is_next(in_ready, in_lost) and in_ready or in_lost
  local id = order.id
  local given, is_held, bytes, expires_at = orders.consider(claim, order)
  if given then
    local count = claim.count + 1
    claim.count, claim.bytes = count, claim.bytes + bytes
    local at = 2 * count
    order.taken[#order.taken + 1] = id
    until_when[at - 1], until_when[at] = until_text, id
    write[at - 1], write[at] = id, given
    at = 3 * count
    answer[at + 3], answer[at + 4], answer[at + 5] = id, order.text, given
    if expires_at then unexpiring[#unexpiring + 1] = id end
  end
  if is_held then
    claim.look = claim.look - 1
    if claim.look == 0 or claim.bytes_read > orders.READ then why = 3 end
  elseif claim.bytes >= most_bytes then
    why = 2
  elseif claim.count >= quota then
    why = 1
  end
  if why > 0 then
    if claim.after_at or claim.look < LOOK then
      local at = is_whole(order.score) and order.score or now
      stop = { string.format('%.0f', at), id, LOOK - claim.look }
    elseif not claim.has_moved and not orders.goes_on(order)
        and not (order == in_ready and in_lost or in_ready).id then
      why = 0 -- All that there is was given.
    end
    break
  end
  orders.advance(claim, order)
end
many('ZREM', ready, in_ready.taken)
many('ZREM', lost, in_lost.taken)
many('ZREM', expiring, unexpiring)
many('ZADD', leases, until_when)
many('HSET', standings, write)
-- Those that are spared are left for others, or for later.
local count, soon = claim.count, claim.soon
if why == 0 and (claim.leaves_due or claim.spares_some) then why = 1 end
if count > 0 then soon = math.min(soon, now + lease) end
spend(LOOK - claim.look + count, claim.bytes_read)
answer[2], answer[3], answer[4], answer[5] = why, claim.bytes, until_due(soon, now, claim.level), count
if claim.after_at or claim.look < LOOK or claim.from_lost then
  local at = 5 + 3 * count
  answer[at + 1], answer[at + 2], answer[at + 3] = stop, claim.stepped or {}, claim.from_lost or {}
end
return answer
