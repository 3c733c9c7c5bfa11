#!lua flags=no-writes
-- Check some jobs of this queue, or some marks of jobs, as they are at one moment.
--   ARGV: now, the part whose entries are checked, cursor
--   answers the cursor to go on with, the ids, and for each of them what is wrong, or ''
local now = clock(ARGV[1])
local hashes = { bodies = bodies, runs = runs, errors = errors, ends = ends }
local orders = { ready = ready, due = due, leases = leases, lost = lost }
local marks = { unknown = unknown, expiring = expiring }
for state, key in pairs(final) do marks[state] = key end
for name, key in pairs(orders) do marks[name] = key end
local HOUR, LONGEST_HEAD_START = 3600 * 1000000, 86400

-- The place a job has and its score there, or what is wrong with that.
local function place_of(id, run)
  local places, name, score = 0, nil, nil
  for _, keys in ipairs({ orders, final }) do
    for each, key in pairs(keys) do
      local found = call('ZSCORE', key, id)
      if found then places, name, score = places + 1, each, tonumber(found) end
    end
  end
  if run and call('ZSCORE', unknown, unknown_member(id, run)) then
    places, name = places + 1, 'unknown'
  end
  if places == 0 then return nil, nil, 'is in no place' end
  if places > 1 then return nil, nil, 'is in two places at once' end
  return name, score, nil
end

local function wrong_end(state, score, run, ending)
  if not ending then return 'has ended, nobody knows how' end
  if run then return 'has ended, and is live at once' end
  if ending[STATE] ~= state then return 'is in a state that is not that of its place' end
  if ending[FINISHED_AT] ~= score then return 'ended at two times' end
  if state == 'dead' and not ending[REASON] then return 'is a dead letter without a reason' end
  return nil
end

local function wrong_run(place, run, body)
  local running = run[LEASE_UNTIL] > 0
  if running ~= (run[WORKER] ~= nil) or running ~= (run[CLAIMED_AT] ~= nil) then
    return 'does not agree with itself about running'
  end
  if running and run[FENCE] == 0 then return 'runs without a fence' end
  if run[PARKED] ~= (place == 'unknown') then return 'does not agree about being parked' end
  if run[RUN_TASK] ~= body[TASK] or run[RUN_VERSION] ~= body[VERSION]
      or run[HEAD_START] ~= body[PRIORITY] * 1000000
      or run[RUN_ENQUEUED_AT] ~= body[ENQUEUED_AT] or run[RUN_EXPIRES_AT] ~= body[EXPIRES_AT] then
    return 'runs as another than was enqueued'
  end
  return nil
end

local function wrong_place(place, score, run, body)
  local running = run and run[LEASE_UNTIL] > 0 or false
  local head_start = body[PRIORITY] * 1000000
  if place == 'unknown' then return nil end
  if running ~= (place == 'leases' or place == 'lost') then return 'is not where its run says' end
  local scores = running and { leases = run[LEASE_UNTIL], lost = run[ORDER_AT] }
    or run and { ready = run[ORDER_AT], due = run[ORDER_AT] + head_start } or {}
  if scores[place] and scores[place] ~= score then return 'has two places in its order' end
  -- A clock that went back makes due jobs look early: allow for an hour.
  if place == 'ready' and score + head_start > now + HOUR then
    return 'stands in the order before it is due'
  end
  return nil
end

local function wrong_expiry(id, watched)
  local score = call('ZSCORE', expiring, id)
  if (score and tonumber(score)) ~= (watched or false) then
    return watched and 'expires, and nobody watches' or 'does not expire, and is watched'
  end
  return nil
end

-- What is wrong with a job; nil if nothing is.
local function wrong(id)
  local text = call('HGET', bodies, id)
  if not text then return 'is not known, but has a mark in ' .. ARGV[2] end
  local run_text, end_text = call('HGET', runs, id), call('HGET', ends, id)
  local run = run_of(run_text)
  local ending = end_in(id, { done = true, cancelled = true, dead = true })
  if run_text and not run or end_text and not ending then return 'cannot be read' end
  local place, score, problem = place_of(id, run)
  if problem then return problem end
  if final[place] then return wrong_end(place, score, run, ending) or wrong_expiry(id, nil) end
  local body = body_of(text)
  if not body then return 'cannot be read' end
  if ending then return 'has ended, and is live at once' end
  if math.abs(body[PRIORITY]) > LONGEST_HEAD_START then return 'has a head start beyond a day' end
  local watched = not (run and run[LEASE_UNTIL] > 0) and body[EXPIRES_AT] or nil
  return run and wrong_run(place, run, body) or wrong_place(place, score, run, body)
    or wrong_expiry(id, watched)
end

-- A job that is known is checked with its body; here only that its mark is the right one.
local function wrong_mark(id, member)
  if ARGV[2] == 'bodies' or call('HEXISTS', bodies, id) == 0 then return wrong(id) end
  local run = ARGV[2] == 'unknown' and live_run(id)
  if run and unknown_member(id, run) ~= member then return 'is parked as another' end
  return nil
end

local command = hashes[ARGV[2]] and 'HSCAN' or 'ZSCAN'
local page = call(command, hashes[ARGV[2]] or marks[ARGV[2]], ARGV[3], 'COUNT', 100)
local ids, problems = {}, {}
for n = 1, #page[2], 2 do
  local member = page[2][n]
  local id = ARGV[2] == 'unknown' and unknown_id(member) or member
  ids[#ids + 1] = id
  problems[#problems + 1] = wrong_mark(id, member) or ''
end
return { page[1], ids, problems }
