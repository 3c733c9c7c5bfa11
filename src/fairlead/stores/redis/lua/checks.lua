-- What may be wrong with a job, as check.lua tells it and repair.lua mends it.
local check = { HOUR = 3600 * 1000000, YEAR = 366 * 86400 * 1000000 }

-- Take note of the keys of this call, and count what it reads from now on.
function check.begin()
  check.hashes = { bodies = bodies, standings = standings, errors = errors }
  check.orders = { ready = ready, due = due, leases = leases, lost = lost }
  check.left = 1000000
end

-- What is kept of a job under a key. How many bytes a call may read is bounded.
function check.get(key, id)
  local text = call('HGET', key, id)
  check.left = check.left - #(text or '')
  return text
end

-- The characters of UTF-8 that have more than one byte, by their first bytes.
local UTF8 = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]',
}

-- Whether a value is a text that can be read, or nothing. All of one kind at once: one character after
-- the other would take seconds. A blank in their place keeps what is beside them apart.
function check.is_readable(text)
  if text == nil then return true end
  if not is_text(text) then return false end
  for n = 1, #UTF8 do
    if not string.find(text, '[\128-\255]') then return true end
    text = string.gsub(text, UTF8[n], ' ')
  end
  return not string.find(text, '[\128-\255]')
end

-- The body or the standing of a text, if it is sound and all of its texts can be read.
function check.body(text)
  local body = body_of(text)
  return body and check.is_readable(body[BODY.TASK]) and check.is_readable(body[BODY.OPTIONS])
    and check.is_readable(body[BODY.PAYLOAD]) and body or nil
end

function check.standing(text)
  local standing = standing_of(text)
  if not standing then return nil end
  for _, field in ipairs({
    STANDING.GATE, STANDING.WORKER, STANDING.CANCEL, STANDING.TASK, STANDING.REASON, STANDING.RESULT,
  }) do
    if not check.is_readable(standing[field]) then return nil end
  end
  return standing
end

-- Whether a failed run is sound.
local function is_past_run(past)
  if not is_count(past[PAST.ATTEMPT], MOST_RUNS) or not is_text(past[PAST.OUTCOME])
      or not is_count(past[PAST.FINISHED_AT]) then
    return false
  end
  for _, field in ipairs({ PAST.CLAIMED_AT, PAST.STARTED_AT }) do
    if past[field] ~= nil and not is_count(past[field]) then return false end
  end
  for _, field in ipairs({
    PAST.OUTCOME, PAST.WORKER, PAST.ERROR, PAST.MESSAGE, PAST.TRACEBACK, PAST.FINGERPRINT,
  }) do
    if not check.is_readable(past[field]) then return false end
  end
  return true
end

-- The failed runs of a job that are sound, each as it is packed, and whether these are all.
function check.history(text)
  local is_read, pasts = pcall(entries_in, text or head_of(0))
  if not is_read or not pasts then return {}, false end
  local sound = {}
  for n = 1, #pasts do
    if fields_of(pasts[n], #PAST, &PAST, is_past_run) then sound[#sound + 1] = pasts[n] end
  end
  return sound, #pasts == #sound
end

-- The place a job has and its score there, or what is wrong with that.
function check.place(id, standing)
  local places, name, score = 0, nil, nil
  for _, keys in ipairs({ check.orders, final }) do
    for each, key in pairs(keys) do
      local found = call('ZSCORE', key, id)
      if found then places, name, score = places + 1, each, tonumber(found) end
    end
  end
  local is_parked = standing and standing[STANDING.GATE] and call('ZSCORE', parked, parked_as(id, standing))
  if is_parked then places, name, score = places + 1, 'parked', tonumber(is_parked) end
  if places == 0 then return nil, nil, 'is in no place' end
  if places > 1 then return nil, nil, 'is in two places at once' end
  return name, score, nil
end

function check.wrong_end(state, score, standing)
  if not standing or not standing[STANDING.STATE] then return 'has ended, nobody knows how' end
  if standing[STANDING.STATE] ~= state then return 'is in a state that is not that of its place' end
  if standing[STANDING.FINISHED_AT] ~= score then return 'ended at two times' end
  if state == 'dead' and not standing[STANDING.REASON] then return 'is a dead letter without a reason' end
  return nil
end

function check.wrong_standing(place, standing, body, now)
  local running = standing[STANDING.LEASE_UNTIL] > 0
  if running ~= (standing[STANDING.WORKER] ~= nil) or running ~= (standing[STANDING.CLAIMED_AT] ~= nil) then
    return 'does not agree with itself about running'
  end
  if running and standing[STANDING.FENCE] == 0 then return 'runs without a fence' end
  if standing[STANDING.LEASE_UNTIL] > now + check.YEAR then return 'is leased for longer than a year' end
  if standing[STANDING.FENCE] > now + check.YEAR then return 'has a fence of the far future' end
  if (standing[STANDING.GATE] ~= nil) ~= (place == 'parked') then return 'does not agree about being parked' end
  if standing[STANDING.TASK] ~= body[BODY.TASK] or standing[STANDING.VERSION] ~= body[BODY.VERSION]
      or standing[STANDING.HEAD_START] ~= body[BODY.PRIORITY] * 1000000
      or standing[STANDING.ENQUEUED_AT] ~= body[BODY.ENQUEUED_AT]
      or standing[STANDING.EXPIRES_AT] ~= body[BODY.EXPIRES_AT]
      or standing[STANDING.LEVEL] ~= body[BODY.LEVEL] then
    return 'runs as another than was enqueued'
  end
  return nil
end

function check.wrong_place(place, score, standing, body, now)
  local running = standing and standing[STANDING.LEASE_UNTIL] > 0 or false
  local head_start = body[BODY.PRIORITY] * 1000000
  if place == 'parked' then return score ~= 0 and 'is parked out of order' or nil end
  if running ~= (place == 'leases' or place == 'lost') then return 'is not where its run says' end
  local order_at = standing and standing[STANDING.ORDER_AT]
  local scores = running and { leases = standing[STANDING.LEASE_UNTIL], lost = order_at }
    or standing and { ready = order_at, due = order_at + head_start } or {}
  if scores[place] and scores[place] ~= score then return 'has two places in its order' end
  -- A clock that went back makes due jobs look early: allow for an hour.
  if place == 'ready' and score + head_start > now + check.HOUR then
    return 'stands in the order before it is due'
  end
  if not is_whole(score) then return 'stands where no time is' end
  return nil
end

function check.wrong_expiry(id, watched)
  local score = call('ZSCORE', expiring, id)
  if (score and tonumber(score)) ~= (watched or false) then
    return watched and 'expires, and nobody watches' or 'does not expire, and is watched'
  end
  return nil
end

function check.has_entries(id)
  return #call('ZRANGEBYLEX', owned, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 1) > 0
end

-- What is wrong with a job; nil if nothing is.
function check.wrong(id, part, now)
  local text = check.get(bodies, id)
  if not text then return 'is not known, but has a mark in ' .. part end
  if not is_id(id) then return 'has an id that cannot be one' end
  local known = check.get(standings, id)
  local standing = check.standing(known)
  if known and not standing then return 'cannot be read' end
  local _, is_whole_history = check.history(check.get(errors, id))
  if not is_whole_history then return 'has a history that cannot be read' end
  if not (standing and may_own(standing)) and check.has_entries(id) then return 'has entries, and does not tell' end
  local place, score, problem = check.place(id, standing)
  if problem then return problem end
  local body = check.body(text)
  if final[place] then
    problem = check.wrong_end(place, score, standing) or check.wrong_expiry(id, nil)
    -- A dead letter may be unreadable, if it says so.
    return problem or not body and standing[STANDING.REASON] ~= 'unreadable' and 'cannot be read' or nil
  end
  if standing and standing[STANDING.STATE] then return 'has ended, and is live at once' end
  if not body then return 'cannot be read' end
  local watched = not (standing and standing[STANDING.LEASE_UNTIL] > 0) and body[BODY.EXPIRES_AT] or nil
  return standing and check.wrong_standing(place, standing, body, now)
    or check.wrong_place(place, score, standing, body, now) or check.wrong_expiry(id, watched)
end

-- Check some members of a key; answers the cursor to go on with, and of each that is wrong its name and what is wrong.
function check.page(command, key, cursor, question)
  local page, found = call(command, key, cursor, 'COUNT', 10), {}
  for n = 1, #page[2], 2 do
    local problem = question(page[2][n])
    if problem then
      found[#found + 1] = page[2][n]
      found[#found + 1] = problem
    end
  end
  return { page[1], found }
end

-- What is wrong with an entry of a job that is not above the level; nil if nothing is.
function check.owned(name, level)
  local problem = check.wrong_owned(name)
  if problem and level_in(call('HGET', bodies, entry.owner_of(name))) <= level then return problem end
end

function check.wrong_owned(name)
  local id = entry.owner_of(name)
  if id == '' or call('HEXISTS', bodies, id) == 0 then return 'belongs to no job' end
  local text = call('HGET', entries, name)
  if not text then return 'is not there, but is listed' end
  local fields = entry.of(text)
  if not fields or id .. '\0' .. entry.name_of(fields) ~= name or not check.is_readable(name)
      or not check.is_readable(fields[ENTRY.VALUE]) then
    return 'cannot be read'
  end
  if call('ZSCORE', owned, name) ~= '0' then return 'is not listed' end
  return nil
end

-- What is wrong with one member of a key of a slot; nil if nothing is.
function check.loose(part, member)
  local name = part == 'awaited' and entry.marked(member) or member
  local text = call('HGET', loose, name)
  if not text then return 'is not there, but has a mark in ' .. part end
  local fields = entry.of(text)
  if not fields or entry.name_of(fields) ~= name or not check.is_readable(name)
      or not check.is_readable(fields[ENTRY.VALUE]) then
    return 'cannot be read'
  end
  local expires_at = call('ZSCORE', passing, name)
  if call('ZSCORE', listed, name) ~= '0' then return 'is not listed' end
  if (expires_at and tonumber(expires_at)) ~= (fields[ENTRY.EXPIRES_AT] or false) then return 'expires at two times' end
  local mark = fields[ENTRY.DUE_AT] and entry.due_mark(fields)
  if mark and call('ZSCORE', awaited, mark) ~= '0' or part == 'awaited' and mark ~= member then
    return 'falls due at two times'
  end
  return nil
end
