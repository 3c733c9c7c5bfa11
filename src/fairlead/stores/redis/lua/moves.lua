-- What time does to jobs: they fall due, they expire, and what ended long ago is forgotten.

-- Whether a text is before another, byte by byte as in a ZSET; for Lua the locale would decide.
local function less(a, b)
  for n = 1, math.min(#a, #b) do
    local one, other = string.byte(a, n), string.byte(b, n)
    if one ~= other then return one < other end
  end
  return #a < #b
end

-- An instant as a text, and with 16 digits: a number would be written anew for each job. It is the same for all
-- queues of a call.
local digits_now, digits, digits_long

local function digits_of(now)
  if now ~= digits_now then
    digits_now, digits, digits_long = now, string.format('%.0f', now), string.format('%016.0f', now)
  end
  return digits, digits_long
end

-- A number for a command, as a text if it is small: to make one costs more than most commands, so they are kept.
local small_numbers = {}

local function text_of(number)
  if number > 1000 then return number end
  local text = small_numbers[number]
  if not text then
    text = string.format('%.0f', number)
    small_numbers[number] = text
  end
  return text
end

-- How many of an order are before a place; those with the same score stand there by id.
local function rank_of(key, at, id)
  local score = string.format('%.0f', at)
  local low = call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if less(call('ZRANGE', key, middle, middle)[1], id) then low = middle + 1 else high = middle end
  end
  return low
end

-- Ids of an order and their scores, one after the other: those that come after a place in it, or the first ones. Going
-- down, the last one comes first.
local function next_in(key, is_down, most, score, id)
  local answers = {}
  local function add(found, n)
    answers[#answers + 1] = found[n]
    answers[#answers + 1] = found[n + 1]
  end
  if is_down then
    local upto = score and rank_of(key, score, id) or call('ZCARD', key)
    local found = upto > 0 and call('ZRANGE', key, math.max(0, upto - most), upto - 1, 'WITHSCORES') or {}
    for n = #found - 1, 1, -2 do add(found, n) end
  else
    local from = score and rank_of(key, score, id) or 0
    -- The job of the key may be there still.
    local found = call('ZRANGE', key, from, from + most, 'WITHSCORES')
    local first = score and found[1] == id and tonumber(found[2]) == score and 3 or 1
    for n = first, math.min(#found, first + 2 * most - 1), 2 do add(found, n) end
  end
  return answers
end

-- When the first of these falls due; the greatest number if none does. Numbers are written as texts in
-- what every call asks: to make a text of one costs more than most commands.
local function first_at(key)
  return tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) or LATEST
end

local STEP, LOOK = 200, 1000 -- A piece has so many jobs at most, and a call looks at so many.

-- When the first job expires that a program of this level may do something about. What is overdue and above it is stepped
-- over; after so many of those it is looked at again in a second.
local function first_expiry(now, level)
  local first, left = first_at(expiring), MOST_READ
  for from = 0, LOOK - STEP, STEP do
    if first > now then return first end
    local found = call('ZRANGE', expiring, from, from + STEP - 1, 'WITHSCORES')
    for n = 1, #found, 2 do
      local text = tonumber(found[n + 1]) <= now and call('HGET', bodies, found[n]) or ''
      if level_in(text) <= level then return tonumber(found[n + 1]) end
      left = left - #text
      if left < 0 then return now + 1000000 end
    end
    if #found < 2 * STEP then return LATEST end
  end
  return now + 1000000
end

-- In how many microseconds something of this queue falls due: a job's time, the end of a lease, an expiry;
-- nil if nothing does. What is overdue waits for a claim already.
local function soonest(now, level)
  local soon = math.min(first_at(due), first_at(leases), first_expiry(now, level)) - now
  return soon < LATEST - now and math.max(0, soon) or nil
end

-- In how many microseconds something falls due, -1 if nothing does. `soon` is when the first thing fell due as the call
-- began; if that is past, it was moved on, and what is first now is looked up.
local function until_due(soon, now, level)
  if soon <= now then return soonest(now, level) or -1 end
  return soon < LATEST and soon - now or -1
end

-- Where a job stands in the order whose time has come. A newer program's head start may be beyond our bounds.
local function order_when_due(text, run_at)
  local priority = number_at(text, &BODY, BODY.PRIORITY)
  local order_at = priority and tonumber(run_at) - priority * 1000000
  return is_whole(order_at) and order_at or 0
end

-- Put jobs whose time has come into the order, at the place they have kept; `claim` is the claim that does it, if any.
-- Their bodies are read for that, so large ones are a few at a time; answers `most` if there may be more.
local function promote(now, most, claim)
  local ids = call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local line, promoted, left = arrivals(now, now), {}, 4000000
  for n = 1, #ids, 2 do
    if left <= 0 then break end
    local text = call('HGET', bodies, ids[n]) or ''
    local body = body_of(text)
    left = left - #text
    local order_at = body and order_of(body, nil, ids[n + 1]) or order_when_due(text, ids[n + 1])
    go_back(claim, order_at)
    arrive(line, ids[n], order_at, now, nil)
    promoted[#promoted + 1] = ids[n]
  end
  enter(line)
  many('ZREM', due, promoted)
  spend(#promoted, 4000000 - left)
  return left > 0 and #promoted or most
end

-- Cancel a waiting job that must not start any more. A mark that means nothing is taken away. Answers whether a program of
-- this level may do anything about the job, and how many bytes were read.
local function expire_one(id, now, level)
  local standing, bytes = live(id)
  local expires_at = standing and standing[STANDING.LEASE_UNTIL] == 0 and standing[STANDING.EXPIRES_AT]
  local text = not standing and call('HGET', bodies, id) or ''
  bytes = bytes + #text
  if (standing and standing[STANDING.LEVEL] or level_in(text)) > level then return false, bytes end
  if expires_at and expires_at > now then
    call('ZADD', expiring, expires_at, id)
    return true, bytes
  end
  if expires_at and is_id(id) then
    displace(id, standing)
    leave_one(id, standing, 'cancelled', now, 'expired', nil)
  end
  call('ZREM', expiring, id)
  return true, bytes
end

-- The same for all whose time has come, large ones a few at a time. What is above the level is stepped over.
local function expire(now, most, level)
  local count, above, left = 0, 0, MOST_READ
  while count < most and above < LOOK do
    local ids = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', above, most - count)
    if #ids == 0 then return count end
    spend(#ids, 0)
    for n = 1, #ids do
      if left < 0 then return count end
      local is_ours, bytes = expire_one(ids[n], now, level)
      left = left - bytes
      if is_ours then count = count + 1 else above = above + 1 end
    end
  end
  return count
end

-- Whether a job that is marked as ended may be forgotten. A mark need not be true: what runs, or has not ended, stays for
-- the audit to tell of. And the bytes that were read, and whether the job may have entries.
local function is_past(id, level)
  local text = call('HGET', standings, id)
  local standing, bytes = standing_of(text), #(text or '')
  if standing then
    return standing[STANDING.STATE] ~= nil and standing[STANDING.LEVEL] <= level, bytes, may_own(standing)
  end
  local body = call('HGET', bodies, id)
  bytes = bytes + #(body or '')
  if level_in(body) > level then return false, bytes end
  for _, place in ipairs({ ready, due, leases, lost }) do
    if call('ZSCORE', place, id) then return false, bytes end
  end
  return text or not body, bytes, true
end

-- As many bytes as to remove an entry is worth.
local ENTRY_BYTES = 1000

-- Note that some of what an ended job owns is gone: a run of it that finds only the rest would do again what is done.
local function begin_to_forget(id)
  local standing = ended_of(call('HGET', standings, id) or '')
  if standing and standing[STANDING.ATTACHED] < FORGETTING then
    standing[STANDING.ATTACHED] = standing[STANDING.ATTACHED] + FORGETTING
    write_standing(id, standing)
  end
end

-- Forget jobs that ended before some instant; answers their ids, and how many entries of them went; a full batch if it stopped before their end. What is above the level is stepped over, and what has more
-- entries than one call may remove is left for the next.
local function prune(before, most, level)
  local old, entries, cut, past = {}, 0, false, '(' .. string.format('%.0f', before)
  for _, key in ipairs({ done, cancelled }) do
    local stays, left, passed = 0, MOST_READ, {}
    while #old + #passed < most and stays < LOOK and left > 0 do
      local ids = call('ZRANGEBYSCORE', key, '-inf', past, 'LIMIT', stays + #passed, most - #old - #passed)
      if #ids == 0 then break end
      for n = 1, #ids do
        local may_go, bytes, may_own_some = is_past(ids[n], level)
        local count = may_go and may_own_some and lose_entries(ids[n]) or 0
        left, entries = left - bytes - count * ENTRY_BYTES, entries + count
        cut = cut or count == MOST or left < 0
        if count == MOST then begin_to_forget(ids[n]) end
        if may_go and count < MOST then passed[#passed + 1] = ids[n] else stays = stays + 1 end
        if left < 0 then break end
      end
    end
    many('ZREM', key, passed)
    for n = 1, #passed do old[#old + 1] = passed[n] end
  end
  forget(old)
  return old, cut and math.max(entries, MOST) or entries
end

-- A list of words as a set of them.
local function set_of(text)
  local set = {}
  for _, word in ipairs(cmsgpack.unpack(text)) do set[word] = true end
  return set
end

-- Tell on a channel that something changed; no word, no news. That is a hint: who may not tell has done its work all
-- the same, and an error would say that it has not.
local function tell(channel, word)
  if word ~= '' then pcall(call, 'PUBLISH', channel, word) end
end
