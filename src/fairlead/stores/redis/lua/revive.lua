#!lua flags=allow-oom
-- Let jobs run again, or sooner, if they are in one of these states and not above the level. A waiting one that is due
-- keeps its place, and a running one is left alone.
--   ARGV: now, ids, level, states, who does it (see write_act), channel, word to tell there
--   answers the ids of those that were revived, and how many it looked at before it had read enough
local now, level, states = clock(ARGV[1]), count_of(ARGV[3]), set_of(ARGV[4])
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('revive', ARGV[2], ARGV[4])
local past, missed = past_of(ARGV[5], mark)
if past then return { past_ids(ids, past, missed), past } end

-- Let a job begin anew. Its fence and its lines go on, and so does what we do not know. Who crashed begins alone. An
-- expiry that has passed is forgotten.
local function begin_anew(id, body, standing, shared_deaths)
  if body[BODY.EXPIRES_AT] and body[BODY.EXPIRES_AT] <= now then
    body[BODY.EXPIRES_AT] = nil
    call('HSET', bodies, id, packed(body, #BODY))
    call('ZREM', expiring, id)
  end
  local fresh = first_standing(body, now - body[BODY.PRIORITY] * 1000000)
  for _, field in ipairs({ STANDING.FENCE, STANDING.LINES, STANDING.GATE, STANDING.ATTACHED }) do
    fresh[field] = standing[field]
  end
  fresh[STANDING.SHARED_DEATHS] = standing[STANDING.CRASHES] > 0 and math.max(shared_deaths, ALONE) or shared_deaths
  fresh.head, fresh.rest = standing.head, standing.rest
  return fresh
end

local function hasten(id, body)
  local past = live(id)
  if not past or past[STANDING.LEASE_UNTIL] > 0
      or past[STANDING.ORDER_AT] + past[STANDING.HEAD_START] <= now then
    return false
  end
  local standing = begin_anew(id, body, past, past[STANDING.SHARED_DEATHS])
  if not standing[STANDING.GATE] then
    displace(id, past)
    enter_one(id, standing, now)
  end
  if call('HEXISTS', standings, id) == 1 then write_standing(id, standing) end
  return true
end

local function again(id, body)
  local past = ended_in(id, states)
  if not past or past[STANDING.ATTACHED] >= FORGETTING then return false end
  local standing = begin_anew(id, body, past, 0)
  call('ZREM', final[past[STANDING.STATE]], id)
  write_standing(id, standing)
  enter_one(id, standing, now)
  return true
end

local touched, looked, left = {}, 0, MOST_READ
for _, id in ipairs(ids) do
  if left < 0 then break end
  local text = call('HGET', bodies, id) or ''
  looked, left = looked + 1, left - #text
  local body = body_of(text)
  if body and body[BODY.LEVEL] <= level
      and ((states.waiting and hasten(id, body)) or again(id, body)) then
    touched[#touched + 1] = id
  end
end
write_act(ARGV[5], #touched, now, nil, mark, looked, missed_in(ids, looked, touched))
if #touched > 0 then tell(ARGV[6], ARGV[7]) end
return { touched, looked }
