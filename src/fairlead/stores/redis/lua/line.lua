-- The line of a queue: how a job stands, and the ways in, out, aside and back. Every verb that moves jobs moves them
-- by these, many at once where that is hot.

-- Where a job stands that was never claimed: by its score in ready or due, if that is sound.
local function order_of(body, order_at, run_at)
  local head_start = body[BODY.PRIORITY] * 1000000
  order_at = tonumber(order_at) or (tonumber(run_at) or body[BODY.ENQUEUED_AT]) - head_start
  return is_whole(order_at) and order_at or body[BODY.ENQUEUED_AT] - head_start
end

-- How a job stands that was never claimed.
local function first_standing(body, order_at)
  local standing = {
    [STANDING.FENCE] = 0, [STANDING.LEASE_UNTIL] = 0, [STANDING.ATTEMPT] = 0, [STANDING.CRASHES] = 0,
    [STANDING.SHARED_DEATHS] = 0, [STANDING.ORDER_AT] = order_at, [STANDING.LINES] = {},
    [STANDING.TASK] = body[BODY.TASK], [STANDING.VERSION] = body[BODY.VERSION],
    [STANDING.HEAD_START] = body[BODY.PRIORITY] * 1000000,
    [STANDING.ENQUEUED_AT] = body[BODY.ENQUEUED_AT], [STANDING.EXPIRES_AT] = body[BODY.EXPIRES_AT],
    [STANDING.LEVEL] = body[BODY.LEVEL], [STANDING.ATTACHED] = 0,
  }
  standing.head, standing.rest = STANDING_HEAD, ''
  return standing
end

-- What is known of a job whose standing cannot be read: nothing.
local function no_standing()
  local standing = first_standing({
    [BODY.TASK] = '', [BODY.VERSION] = 0, [BODY.PRIORITY] = 0, [BODY.ENQUEUED_AT] = 0, [BODY.LEVEL] = 1,
  }, 0)
  standing[STANDING.ATTACHED] = 1 -- It may have entries.
  return standing
end

local function write_standing(id, standing)
  call('HSET', standings, id, packed(standing, #STANDING))
end

-- How many bytes of jobs a call may read that can leave the rest to the next one: to read and to write
-- them keeps everybody else waiting.
local MOST_READ = 1000000

-- How a live job stands that may never have been claimed; nil if it is not live. And the bytes that were read.
local function live(id)
  local known = call('HGET', standings, id) or ''
  local standing = standing_of(known)
  if standing then return not standing[STANDING.STATE] and standing or nil, #known end
  local order_at = call('ZSCORE', ready, id)
  local run_at = not order_at and call('ZSCORE', due, id)
  if not order_at and not run_at then return nil, #known end
  local text = call('HGET', bodies, id) or ''
  local body = body_of(text)
  return body and first_standing(body, order_of(body, order_at, run_at)), #text
end

-- How a job stood in the end, if it is in one of these final states; else nil. And how many bytes were read.
local function ended_in(id, states)
  local text = call('HGET', standings, id) or ''
  local standing = ended_of(text)
  return standing and states[standing[STANDING.STATE]] and standing or nil, #text
end

-- In: jobs gather in lists, and then come into the line together. `now` may be the text of it as well.
local function arrivals(now, now_text)
  return { now = now, now_text = now_text, ready = {}, due = {}, expiring = {} }
end

local function arrive(line, id, order_at, run_at, expires_at)
  local now = line.now
  if run_at > now then
    local those = line.due
    local count = #those
    those[count + 1], those[count + 2] = run_at, id
  else
    local those = line.ready
    local count = #those
    those[count + 1], those[count + 2] = order_at == now and line.now_text or order_at, id
  end
  if expires_at then
    local those = line.expiring
    local count = #those
    those[count + 1], those[count + 2] = expires_at, id
  end
end

local function enter(line)
  if #line.ready > 0 then many('ZADD', ready, line.ready) end
  if #line.due > 0 then many('ZADD', due, line.due) end
  if #line.expiring > 0 then many('ZADD', expiring, line.expiring) end
end

-- The same for one job, which waits: in the order, or for its time.
local function enter_one(id, standing, now)
  local line, order_at = arrivals(now, now), standing[STANDING.ORDER_AT]
  arrive(line, id, order_at, order_at + standing[STANDING.HEAD_START], standing[STANDING.EXPIRES_AT])
  enter(line)
end

-- Where a job is among the parked: the gate and its key, then whether it waits or its run was lost.
local function parked_as(id, standing)
  return standing[STANDING.GATE] .. '\0' .. (standing[STANDING.LEASE_UNTIL] > 0 and 'r' or 'w') .. id
end

local function parked_id(member)
  return string.match(member, '%z.([^%z]*)$') or ''
end

-- Take a live job out of the place it has.
local function displace(id, standing)
  if standing[STANDING.GATE] then
    call('ZREM', parked, parked_as(id, standing))
  elseif standing[STANDING.LEASE_UNTIL] > 0 then
    if call('ZREM', leases, id) == 0 then call('ZREM', lost, id) end
  elseif call('ZREM', ready, id) == 0 then
    call('ZREM', due, id)
  end
end

-- Out: jobs gather in lists, and then leave the line together. `leased` are those that are among the leases, or lost;
-- any other is out of its place already.
local function departures(now, now_text)
  return { now = now, now_text = now_text, leased = {}, standings = {}, done = false, cancelled = false, dead = false }
end

-- Nothing of what its body tells is kept with an end.
local OF_BODY = nil<STANDING task..expires_at>

-- What the standings of jobs that end now have in common, by state: the same for all queues of a call.
local ends_now, ends

local function ending_as(state, now)
  if now ~= ends_now then ends_now, ends = now, {} end
  local text = ends[state]
  if not text then
    text = OF_BODY .. cmsgpack.pack(state, now)
    ends[state] = text
  end
  return text
end

local function depart(
  out, id, head, fence, attempt, crashes, shared_deaths, order_at, worker, claimed_at, lines,
  state, reason, result, level, attached, rest
)
  local those = out.standings
  local count = #those
  those[count + 1] = id
  those[count + 2] = head .. cmsgpack.pack(
    fence, 0, attempt, crashes, shared_deaths, order_at, nil, worker, claimed_at, nil, lines
  ) .. ending_as(state, out.now) .. cmsgpack.pack(reason, result, level, attached) .. rest
  those = out[state]
  if not those then
    those = {}
    out[state] = those
  end
  count = #those
  those[count + 1], those[count + 2] = out.now_text, id
end

local function mark_ends(out)
  if out.done then many('ZADD', done, out.done) end
  if out.cancelled then many('ZADD', cancelled, out.cancelled) end
  if out.dead then many('ZADD', dead, out.dead) end
end

-- Give back leases of jobs whose standings are as they were.
local function lease_again(ids)
  local texts, until_when = many('HMGET', standings, ids), {}
  for n = 1, #ids do
    until_when[2 * n - 1], until_when[2 * n] = live_of(texts[n])[STANDING.LEASE_UNTIL], ids[n]
  end
  many('ZADD', leases, until_when)
end

-- The leases are asked for by writing them first, and the standings were read by who calls this. If a key of the ends is
-- of another type than ours, nobody has left. Who is not among the leases has lost its own, and nobody took it
-- over; an order of lost ones of another type than ours must not end the call: nobody is in it.
local function leave(out)
  local count = #out.leased
  if count > 0 and many('ZREM', leases, out.leased) < count then
    pcall(many, 'ZREM', lost, out.leased)
  end
  local is_marked, problem = pcall(mark_ends, out)
  if not is_marked then
    lease_again(out.leased)
    error(problem)
  end
  many('HSET', standings, out.standings)
end

-- The same for one job, whose place is gone already.
local function leave_one(id, standing, state, now, reason, result)
  local out = departures(now, now)
  depart(
    out, id, standing.head, standing[STANDING.FENCE], standing[STANDING.ATTEMPT], standing[STANDING.CRASHES],
    standing[STANDING.SHARED_DEATHS], standing[STANDING.ORDER_AT], standing[STANDING.WORKER],
    standing[STANDING.CLAIMED_AT], standing[STANDING.LINES], state, reason, result,
    standing[STANDING.LEVEL], standing[STANDING.ATTACHED], standing.rest
  )
  leave(out)
end

-- What is added to the number of what a job takes with it once some of that is gone: it cannot run again.
local FORGETTING = 1024

-- Whether a job may have entries, by its standing, which is nil if nobody can read it.
local function may_own(standing)
  return not standing or standing[STANDING.ATTACHED] % 2 == 1
end

-- Put members of a set back that is looked through by their text, which takes all of them to have the same score.
local function level_out(set, most)
  for _, span in ipairs({ { '-inf', '(0' }, { '(0', '+inf' } }) do
    for _, member in ipairs(call('ZRANGEBYSCORE', set, span[1], span[2], 'LIMIT', 0, most)) do
      call('ZADD', set, 0, member)
    end
  end
end

-- Remove entries of a job, a bounded number of them; answers how many.
local function lose_entries(id)
  level_out(owned, MOST)
  local names = call('ZRANGEBYLEX', owned, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, MOST)
  many('HDEL', entries, names)
  many('ZREM', owned, names)
  return #names
end

-- Out of the line and the queue: nothing is left of these jobs but their lines of the log. Their entries are gone already.
local function forget(ids)
  many('HDEL', bodies, ids)
  many('HDEL', standings, ids)
  many('HDEL', errors, ids)
end

-- Put a damaged job aside that was taken from its place: a dead letter if something is left of it, and
-- nothing if not. One that is in another place, too, is met there; one without a name stays in no place,
-- until repair.lua gives it one.
local function put_aside(id, standing, now)
  for _, key in ipairs({ ready, due, leases, lost }) do
    if call('ZSCORE', key, id) then return end
  end
  local is_known = call('HEXISTS', bodies, id) == 1
  if is_known and not is_id(id) then return end
  if not is_known then
    call('HDEL', standings, id)
  elseif not ended_of(call('HGET', standings, id)) then
    leave_one(id, standing or no_standing(), 'dead', now, 'unreadable', nil)
  end
  call('ZREM', expiring, id)
end

-- Aside: waiting and lost jobs stand behind a gate, under a key of that gate's own, until they are brought back. The
-- reason is a word of core.job.Gate.
local function park(jobs, reason, key)
  local waiting, written, members = {}, {}, {}
  for id, standing in pairs(jobs) do
    if standing[STANDING.LEASE_UNTIL] > 0 then displace(id, standing) else waiting[#waiting + 1] = id end
    standing[STANDING.GATE] = reason .. '\0' .. key
    written[#written + 1] = id
    written[#written + 1] = packed(standing, #STANDING)
    members[#members + 1] = '0'
    members[#members + 1] = parked_as(id, standing)
  end
  many('ZREM', ready, waiting)
  many('ZREM', due, waiting)
  many('HSET', standings, written)
  many('ZADD', parked, members)
end

-- Let a claim go back to what comes to stand before its place.
local function go_back(claim, order_at)
  if claim and claim.after_at and order_at <= claim.after_at then
    claim.after_at, claim.after_id = order_at, ''
  end
end

-- Back: the jobs of these members of the parked stand where they stood; answers how many. One that cannot be read
-- is left to the newer program that wrote it, or put aside. `claim` is the claim that does it, if any.
local function bring_back(members, now, level, claim)
  local back = {}
  for n = 1, #members do
    local id = parked_id(members[n])
    local standing = live_of(call('HGET', standings, id))
    if standing or level_in(call('HGET', bodies, id)) <= level then back[#back + 1] = members[n] end
    if standing then
      local lease_until, order_at = standing[STANDING.LEASE_UNTIL], standing[STANDING.ORDER_AT]
      standing[STANDING.GATE] = nil
      write_standing(id, standing)
      if lease_until > now then
        call('ZADD', leases, lease_until, id)
      else
        call('ZADD', lease_until > 0 and lost or ready, order_at, id)
        go_back(claim, order_at)
      end
    elseif back[#back] == members[n] then -- Nobody knows how often it ran.
      put_aside(id, nil, now)
    end
  end
  many('ZREM', parked, back)
  spend(#members, 0)
  return #back
end
