-- What may be wrong with a job, as check.lua tells it and repair.lua mends it.
local check = { HOUR = 3600 * 1000000, YEAR = 366 * 86400 * 1000000 }

-- Take note of the keys of this call, and count what it reads from now on.
function check.begin()
  check.hashes = { bodies = bodies, runs = runs, errors = errors, ends = ends }
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

-- The body, run or end of a text, if it is sound and all of its texts can be read.
function check.body(text)
  local body = body_of(text)
  return body and check.is_readable(body[TASK]) and check.is_readable(body[OPTIONS])
    and check.is_readable(body[PAYLOAD]) and body or nil
end

function check.run(text)
  local run = run_of(text)
  return run and check.is_readable(run[WORKER]) and check.is_readable(run[CANCEL])
    and check.is_readable(run[RUN_TASK]) and run or nil
end

function check.ending(text)
  local ending = end_of_text(text)
  return ending and check.is_readable(ending[WORKER]) and check.is_readable(ending[REASON])
    and check.is_readable(ending[RESULT]) and ending or nil
end

-- Whether a failed run is sound.
function check.is_past(past)
  if type(past) ~= 'table' or not is_count(past[1], MOST_RUNS) or not is_text(past[2])
      or not is_count(past[6]) then
    return false
  end
  for _, field in ipairs({ 4, 5 }) do
    if past[field] ~= nil and not is_count(past[field]) then return false end
  end
  for _, field in ipairs({ 2, 3, 7, 8, 9, 10 }) do
    if not check.is_readable(past[field]) then return false end
  end
  return true
end

-- The failed runs of a job that are sound, and whether these are all.
function check.history(text)
  local is_read, pasts = pcall(cmsgpack.unpack, text or '\144')
  if not is_read or type(pasts) ~= 'table' then return {}, false end
  local sound, count = {}, 0
  for n = 1, #pasts do
    if check.is_past(pasts[n]) then sound[#sound + 1] = pasts[n] end
  end
  for _ in pairs(pasts) do count = count + 1 end
  return sound, count == #sound
end

-- The place a job has and its score there, or what is wrong with that.
function check.place(id, run)
  local places, name, score = 0, nil, nil
  for _, keys in ipairs({ check.orders, final }) do
    for each, key in pairs(keys) do
      local found = call('ZSCORE', key, id)
      if found then places, name, score = places + 1, each, tonumber(found) end
    end
  end
  local parked = run and call('ZSCORE', unknown, unknown_member(id, run))
  if parked then places, name, score = places + 1, 'unknown', tonumber(parked) end
  if places == 0 then return nil, nil, 'is in no place' end
  if places > 1 then return nil, nil, 'is in two places at once' end
  return name, score, nil
end

function check.wrong_end(state, score, run, ending)
  if not ending then return 'has ended, nobody knows how' end
  if run then return 'has ended, and is live at once' end
  if ending[STATE] ~= state then return 'is in a state that is not that of its place' end
  if ending[FINISHED_AT] ~= score then return 'ended at two times' end
  if state == 'dead' and not ending[REASON] then return 'is a dead letter without a reason' end
  return nil
end

function check.wrong_run(place, run, body, now)
  local running = run[LEASE_UNTIL] > 0
  if running ~= (run[WORKER] ~= nil) or running ~= (run[CLAIMED_AT] ~= nil) then
    return 'does not agree with itself about running'
  end
  if running and run[FENCE] == 0 then return 'runs without a fence' end
  if run[LEASE_UNTIL] > now + check.YEAR then return 'is leased for longer than a year' end
  if run[FENCE] > now + check.YEAR then return 'has a fence of the far future' end
  if run[PARKED] ~= (place == 'unknown') then return 'does not agree about being parked' end
  if run[RUN_TASK] ~= body[TASK] or run[RUN_VERSION] ~= body[VERSION]
      or run[HEAD_START] ~= body[PRIORITY] * 1000000
      or run[RUN_ENQUEUED_AT] ~= body[ENQUEUED_AT] or run[RUN_EXPIRES_AT] ~= body[EXPIRES_AT] then
    return 'runs as another than was enqueued'
  end
  return nil
end

function check.wrong_place(place, score, run, body, now)
  local running = run and run[LEASE_UNTIL] > 0 or false
  local head_start = body[PRIORITY] * 1000000
  if place == 'unknown' then return score ~= 0 and 'is parked out of order' or nil end
  if running ~= (place == 'leases' or place == 'lost') then return 'is not where its run says' end
  local scores = running and { leases = run[LEASE_UNTIL], lost = run[ORDER_AT] }
    or run and { ready = run[ORDER_AT], due = run[ORDER_AT] + head_start } or {}
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

-- What is wrong with a job; nil if nothing is.
function check.wrong(id, part, now)
  local text = check.get(bodies, id)
  if not text then return 'is not known, but has a mark in ' .. part end
  if not is_id(id) then return 'has an id that cannot be one' end
  local run_text, end_text = check.get(runs, id), check.get(ends, id)
  local run, ending = check.run(run_text), check.ending(end_text)
  if run_text and not run or end_text and not ending then return 'cannot be read' end
  local _, is_whole_history = check.history(check.get(errors, id))
  if not is_whole_history then return 'has a history that cannot be read' end
  local place, score, problem = check.place(id, run)
  if problem then return problem end
  local body = check.body(text)
  if final[place] then
    problem = check.wrong_end(place, score, run, ending) or check.wrong_expiry(id, nil)
    -- A dead letter may be unreadable, if it says so.
    return problem or not body and ending[REASON] ~= 'unreadable' and 'cannot be read' or nil
  end
  if ending then return 'has ended, and is live at once' end
  if not body then return 'cannot be read' end
  local watched = not (run and run[LEASE_UNTIL] > 0) and body[EXPIRES_AT] or nil
  return run and check.wrong_run(place, run, body, now)
    or check.wrong_place(place, score, run, body, now) or check.wrong_expiry(id, watched)
end
