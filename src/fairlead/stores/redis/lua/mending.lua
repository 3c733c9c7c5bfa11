-- How a damaged job is put right, or moved out. A job of which only marks are damaged is put right, any other
-- becomes a dead letter, reason `unreadable`; of what is no job, marks are removed. `member` is how it is parked, or ''.
local mending = {}

-- Take a job out of every place.
function mending.take_away(id, member, standing)
  for _, keys in ipairs({ check.orders, final, { expiring } }) do
    for _, key in pairs(keys) do call('ZREM', key, id) end
  end
  if member ~= '' or id == '' then call('ZREM', parked, member) end
  if standing and standing[STANDING.GATE] then call('ZREM', parked, parked_as(id, standing)) end
end

function mending.forget(id, member)
  mending.take_away(id, member, nil)
  repeat until lose_entries(id) < MOST
  forget({ id })
end

-- Make a dead letter of a job under a name that people can call.
function mending.rename(id, member, queue_mark, now)
  local sum = redis.sha1hex(id)
  local name = string.format('%s-%s-8%s-8%s-%s%s', string.sub(sum, 1, 8), string.sub(sum, 9, 12),
    string.sub(sum, 13, 15), string.sub(sum, 16, 18), string.sub(sum, 19, 26), queue_mark)
  if call('HEXISTS', bodies, name) == 0 then
    call('HSET', bodies, name, call('HGET', bodies, id))
    leave_one(name, no_standing(), 'dead', now, 'unreadable', nil)
  end
  mending.forget(id, member)
  return name
end

function mending.mend_history(id)
  local sound, is_whole_history = check.history(call('HGET', errors, id))
  if is_whole_history then return end
  if #sound > 0 then call('HSET', errors, id, list_of(sound)) else call('HDEL', errors, id) end
end

-- Let a job tell of the entries that it has.
function mending.attach_entries(id)
  if not check.has_entries(id) then return end
  local standing = ended_of(call('HGET', standings, id)) or live(id)
  if standing then entry.attach(id, standing) end
end

-- Take numbers of batches that cannot be out of a standing, which may be sound but for these.
function mending.mend_lines(id)
  local text = call('HGET', standings, id)
  local is_read, standing = pcall(fields_in, text or '', #STANDING, &STANDING)
  if not is_read or not standing or standing_of(text) then return end
  local numbers = {}
  for _, number in pairs(type(standing[STANDING.LINES]) == 'table' and standing[STANDING.LINES] or {}) do
    if is_count(number) then numbers[#numbers + 1] = number end
  end
  table.sort(numbers)
  standing[STANDING.LINES] = numbers
  text = packed(standing, #STANDING)
  if standing_of(text) then call('HSET', standings, id, text) end
end

-- Where a job has ended by its marks: the state, when, and whether there is such a mark.
function mending.ended_by_mark(id)
  local state, at, count = nil, nil, 0
  for each, key in pairs(final) do
    local score = tonumber(call('ZSCORE', key, id))
    if score then state, at, count = each, score, count + 1 end
  end
  return count == 1 and state or nil, at, count > 0
end

function mending.mend_end(id, member, body, standing, now)
  local state, at, reason, result = mending.ended_by_mark(id)
  at, reason = is_count(at) and at or now, nil
  if standing and standing[STANDING.STATE] then
    state, at, reason, result = unpack(standing, STANDING.STATE, STANDING.RESULT)
  end
  if not body or not state then state, reason, result = 'dead', 'unreadable', nil end
  if state == 'dead' and not reason then reason = 'unreadable' end
  mending.take_away(id, member, standing)
  leave_one(id, standing or no_standing(), state, at, reason, result)
end

-- Make the counts of a live job agree with its body and with each other.
function mending.agree(standing, body, now)
  local fence, lease_until = standing[STANDING.FENCE], standing[STANDING.LEASE_UNTIL]
  local worker, claimed_at = standing[STANDING.WORKER], standing[STANDING.CLAIMED_AT]
  local signs = (worker and 1 or 0) + (claimed_at and 1 or 0) + (lease_until > 0 and 1 or 0)
  if fence > now + check.YEAR then fence = now end
  if signs > 1 then -- What two of three say is true.
    if fence == 0 then fence = now end
    if lease_until == 0 or lease_until > now + check.YEAR then lease_until = now end
    worker, claimed_at = worker or 'unknown', claimed_at or fence
  else
    worker, claimed_at, lease_until = nil, nil, 0
  end
  standing[STANDING.FENCE], standing[STANDING.LEASE_UNTIL] = fence, lease_until
  standing[STANDING.WORKER], standing[STANDING.CLAIMED_AT] = worker, claimed_at
  standing[STANDING.TASK], standing[STANDING.VERSION] = body[BODY.TASK], body[BODY.VERSION]
  standing[STANDING.HEAD_START] = body[BODY.PRIORITY] * 1000000
  standing[STANDING.ENQUEUED_AT], standing[STANDING.EXPIRES_AT] = body[BODY.ENQUEUED_AT], body[BODY.EXPIRES_AT]
  standing[STANDING.LEVEL] = body[BODY.LEVEL]
end

function mending.mend_live(id, member, body, standing, now)
  local order_at = order_of(body, call('ZSCORE', ready, id), call('ZSCORE', due, id))
  local is_parked = standing and standing[STANDING.GATE] and call('ZSCORE', parked, parked_as(id, standing))
  mending.take_away(id, member, standing)
  if not standing then
    call('HDEL', standings, id)
    enter_one(id, first_standing(body, order_at), now)
    return
  end
  mending.agree(standing, body, now)
  if not is_parked then standing[STANDING.GATE] = nil end
  write_standing(id, standing)
  local running = standing[STANDING.LEASE_UNTIL] > 0
  if is_parked then
    call('ZADD', parked, 0, parked_as(id, standing))
    if body[BODY.EXPIRES_AT] and not running then call('ZADD', expiring, body[BODY.EXPIRES_AT], id) end
  elseif running then
    call('ZADD', leases, standing[STANDING.LEASE_UNTIL], id)
  else
    enter_one(id, standing, now)
  end
end

-- Whether a job was claimed, and nobody knows any more how often.
function mending.has_lost_run(id, standing)
  if standing or call('HEXISTS', standings, id) == 1 then return not standing end
  return not call('ZSCORE', ready, id) and not call('ZSCORE', due, id)
    and (call('ZSCORE', leases, id) or call('ZSCORE', lost, id))
end

-- Put right what is damaged of a job that has a body and a name.
function mending.mend_job(id, member, text, is_odd, now)
  mending.mend_history(id)
  mending.mend_lines(id)
  mending.attach_entries(id)
  local body, standing = check.body(text), check.standing(call('HGET', standings, id))
  local has_ended = standing and standing[STANDING.STATE]
  local _, _, is_marked = mending.ended_by_mark(id)
  local is_live = standing and not has_ended
  for _, key in pairs(check.orders) do is_live = is_live or call('ZSCORE', key, id) end
  if has_ended or not is_live and is_marked then
    if body and is_odd then
      body[BODY.OPTIONS] = nil
      call('HSET', bodies, id, packed(body, #BODY))
    end
    mending.mend_end(id, member, body, standing, now)
  elseif body and not is_odd and not mending.has_lost_run(id, standing) then
    mending.mend_live(id, member, body, standing, now)
  else
    mending.mend_end(id, member, nil, standing, now)
  end
  if check.wrong(id, '', now) then mending.mend_end(id, member, nil, nil, now) end
  local after = ended_of(call('HGET', standings, id))
  return not has_ended and after and after[STANDING.REASON] == 'unreadable' and 'dead' or 'right'
end

-- Put a job right that is not above the level; answers what it is now.
function mending.mend(id, member, is_odd, queue_mark, now, level)
  local text = call('HGET', bodies, id)
  if level_in(text) > level then return '' end
  if not check.wrong(id, '', now) and not is_odd then
    -- The job is sound, so the mark that led here is not its own.
    local standing = check.standing(call('HGET', standings, id))
    local is_own = standing and standing[STANDING.GATE] and parked_as(id, standing) == member
    if member == '' or is_own then return '' end
    return call('ZREM', parked, member) == 1 and 'right' or ''
  end
  if not text then
    mending.forget(id, member)
    return 'removed'
  end
  if not is_id(id) then return mending.rename(id, member, queue_mark, now) end
  return mending.mend_job(id, member, text, is_odd, now)
end

-- Put the marks of an entry right, or remove what is no entry; answers what was done, '' if nothing was wrong.
function mending.mend_loose(part, member)
  local problem = check.loose(part, member)
  if not problem then return '' end
  local name = part == 'awaited' and entry.marked(member) or member
  local fields = entry.of(call('HGET', loose, name))
  call('ZREM', awaited, member)
  entry.remove(name, nil)
  if not fields or problem == 'cannot be read' then return 'removed' end
  entry.remove(name, fields)
  call('HSET', loose, name, packed(fields, #ENTRY))
  entry.mark(name, fields)
  return 'right'
end

-- The same for an entry of a job.
function mending.mend_owned(name, level)
  local problem = check.owned(name, level)
  -- It is met in both keys, and may be gone from them by now.
  local is_there = call('HEXISTS', entries, name) == 1 or call('ZSCORE', owned, name)
  if not problem or not is_there then return '' end
  if problem == 'is not listed' then
    call('ZADD', owned, 0, name)
    mending.attach_entries(entry.owner_of(name))
    return 'right'
  end
  call('HDEL', entries, name)
  call('ZREM', owned, name)
  return 'removed'
end
