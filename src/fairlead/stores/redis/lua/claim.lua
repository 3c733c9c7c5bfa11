#!lua flags=allow-oom
-- Move on what waits for its time, and give a worker up to `quota` jobs of this queue, in order. What shares of several queues are
-- right is told by the selection rule, which the caller runs; the gates are the same ones.
--   ARGV: now, worker, lease, capable (task -> version, '' for any), spare lost ones (1), asked_at;
--         quota, how many bytes of payload and options to bring, and the job that reaches it,
--         order_at and id of the place to go on after
--   answers now, whether there may be more (2: it had enough bytes, 3: it stepped over as many as it
--         may), bytes of payload and options that are brought, in how many microseconds something falls
--         due (-1 if nothing does), how many jobs, id, body and run of each; and three lists, if one has
--         something in it or the claim went on from a place: order_at and id of the last job it looked at
--         and how many it stepped over, unless it came to the end; id, task and version of jobs stepped over
--         for their task; ids of those that were taken over as lost. Lists in a list are dear, so the
--         jobs have none of their own.
local now = clock(ARGV[1])
local worker, lease = name_of(ARGV[2]), count_of(ARGV[3], LATEST - now)
local capable = capable_of(ARGV[4])
local spare = ARGV[5] == '1' or (ARGV[6] ~= '' and now - ARGV[6] >= math.floor(lease / 2))
local quota, most_bytes = count_of(ARGV[7], 500), count_of(ARGV[8])
local claim = orders.claim(quota, ARGV[9] ~= '' and tonumber(ARGV[9]) or nil, ARGV[10])

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
local more = due_at <= now and promote(now, orders.STEP, claim) >= orders.STEP
local back = are_parked > 0 and bring_back(capable, now, orders.STEP, claim) or 0
if expires_at <= now then expire(now, orders.STEP) end
if leased_at <= now then orders.lose(claim, now) end

-- After something was moved on, there may be any number.
local in_all = (soon <= now or back > 0) and LATEST or in_line + were_lost
if is_paused or quota == 0 then
  local answer = { now, not is_paused and in_all > 0 and 1 or 0, 0, until_due(soon, now), 0 }
  -- What came to stand before the place is seen from the front only.
  if claim.after_at and claim.after_id == '' then answer[6], answer[7], answer[8] = {}, {}, {} end
  return answer
end

local in_ready = orders.begin(claim, ready)
local in_lost = in_all > in_line and orders.begin(claim, lost) or orders.NONE
local answer, stepped, stop = { now, 0, 0, 0, 0 }, {}, {}
local from_lost, until_when, write, unexpiring = {}, {}, {}, {}
local why = 0
local until_text, before, between = first_runs(now, lease, worker)

while in_ready.id or in_lost.id do
  local order = orders.is_next(in_ready, in_lost) and in_ready or in_lost
  local id, score, text = order.id, order.score, order.text
  local run = order.state and run_of(order.state)
  local is_lost = run and run[LEASE_UNTIL] > 0
  local is_damaged = not run and (order.state or order == in_lost)
  local is_read, task, version, head_start, enqueued_at, expires_at, size
  if text then
    is_read, task, version, head_start, enqueued_at, expires_at, size = pcall(orders.read_body, text)
  end
  local is_held, given = false, nil
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
    given = packed_run(run)
  else
    if not is_whole(score) then score = enqueued_at - head_start end
    given = before .. cmsgpack.pack(score) .. between
      .. cmsgpack.pack(task, version, head_start, enqueued_at, expires_at or null)
  end
  if given then
    local count = claim.count + 1
    claim.count, claim.bytes = count, claim.bytes + size
    local at = 2 * count
    order.taken[#order.taken + 1] = id
    until_when[at - 1], until_when[at] = until_text, id
    write[at - 1], write[at] = id, given
    at = 3 * count
    answer[at + 3], answer[at + 4], answer[at + 5] = id, text, given
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
    if claim.after_at or claim.look < orders.LOOK then
      local at = is_whole(score) and score or now
      stop = { string.format('%.0f', at), id, orders.LOOK - claim.look }
    end
    break
  end
  orders.advance(claim, order)
end
many('ZREM', ready, in_ready.taken)
many('ZREM', lost, in_lost.taken)
many('ZREM', expiring, unexpiring)
many('ZADD', leases, until_when)
many('HSET', runs, write)
-- Those that are spared are left for others, or for later.
local count = claim.count
if why > 0 and in_all <= count then why = 0 end
if why == 0 and (more or spare and (were_lost > 0 or leased_at <= now)) then why = 1 end
if count > 0 then soon = math.min(soon, now + lease) end
spend(orders.LOOK - claim.look + count, claim.bytes_read)
answer[2], answer[3], answer[4], answer[5] = why, claim.bytes, until_due(soon, now), count
if claim.after_at or claim.look < orders.LOOK or #from_lost > 0 then
  local at = 5 + 3 * count
  answer[at + 1], answer[at + 2], answer[at + 3] = stop, stepped, from_lost
end
return answer
