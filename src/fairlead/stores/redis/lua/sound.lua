-- What is kept must be *sound*: whoever wrote something else damaged it. Whatever is not sound is
-- passed over or put aside by who reads it, told by check.lua, and mended by repair.lua.
local DAY, MOST_RUNS = 86400, 1000000000

-- Whether a value is a whole number that Lua holds exactly, as every number here is.
local function is_whole(value)
  return type(value) == 'number' and value % 1 == 0 and value >= -LATEST and value <= LATEST
end

-- The same from zero up to some number; an instant if none is given.
local function is_count(value, most)
  return type(value) == 'number' and value % 1 == 0 and value >= 0 and value <= (most or LATEST)
end

local function is_text(value)
  return type(value) == 'string'
end

-- Whether a text can be the id of a job.
local function is_id(text)
  return #text <= 36 and string.find(text, '^[ -~]+$') ~= nil
end

-- Whether a value is a list of numbers of batches.
local function are_lines(value)
  if type(value) ~= 'table' then return false end
  local count = 0
  for at, number in pairs(value) do
    if not is_count(at) or not is_count(number) then return false end
    count = count + 1
  end
  return count == #value
end

-- The next two are asked for every job of a claim or a settlement. To compare a number costs much
-- less than to ask for its type, and raises if it is none: so they are called by pcall only.

-- Whether the fields of a body that claims look at are sound.
local function is_call(task, version, priority, enqueued_at, expires_at, level)
  return type(task) == 'string' and version >= 0 and version <= 2147483647 and version % 1 == 0
    and priority >= -DAY and priority <= DAY and priority % 1 == 0
    and enqueued_at >= 0 and enqueued_at <= LATEST and enqueued_at % 1 == 0
    and (expires_at == nil or expires_at >= 0 and expires_at <= LATEST and expires_at % 1 == 0)
    and level >= 1 and level <= 1000 and level % 1 == 0
end

-- Whether the counts of a standing are sound.
local function are_counts(<STANDING fence..lines>, attached)
  return fence >= 0 and fence <= LATEST and fence % 1 == 0
    and lease_until >= 0 and lease_until <= LATEST and lease_until % 1 == 0
    and attempt >= 0 and attempt <= MOST_RUNS and attempt % 1 == 0
    and crashes >= 0 and crashes <= MOST_RUNS and crashes % 1 == 0
    and shared_deaths >= 0 and shared_deaths <= MOST_RUNS and shared_deaths % 1 == 0
    and (gate == nil or type(gate) == 'string')
    and order_at >= -LATEST and order_at <= LATEST and order_at % 1 == 0
    and (worker == nil or type(worker) == 'string') and (cancel == nil or type(cancel) == 'string')
    and (claimed_at == nil or claimed_at >= 0 and claimed_at <= LATEST and claimed_at % 1 == 0)
    and (type(lines) == 'table' and next(lines) == nil or are_lines(lines))
    and attached >= 0 and attached <= LATEST and attached % 1 == 0
end

-- What a standing of another version is written back behind, if it begins and ends as it should; by pcall.
local function other_head(head, rest)
  local size, count = opened(head)
  if size ~= #STANDING_HEAD or count < &STANDING then return nil end
  if count < #STANDING then return rest == '' and STANDING_HEAD or nil end
  return are_values(rest, count - #STANDING) and head or nil
end

-- The fields of a live standing up to expires_at, then level, attached, and what is around the fields; or nothing.
-- By pcall, as above.
local function read_live(text)
  local at, <STANDING> = cmsgpack.unpack_limit(text, #STANDING, #STANDING_HEAD)
  local head, rest = string.sub(text, 1, #STANDING_HEAD), at > 0 and string.sub(text, at + 1) or ''
  if head ~= STANDING_HEAD or at > 0 then head = other_head(head, rest) end
  if head and state == nil
      and are_counts(<STANDING fence..lines>, attached)
      and is_call(task, version, head_start / 1000000, enqueued_at, expires_at, level) then
    return <STANDING fence..expires_at>, level, attached, head, rest
  end
end

local function is_body(body)
  return is_call(unpack(body, BODY.TASK, BODY.LEVEL)) and is_text(body[BODY.PAYLOAD])
    and (body[BODY.OPTIONS] == nil or is_text(body[BODY.OPTIONS]))
end

-- Whether the end that a standing tells of is sound.
local function is_end(standing)
  local <STANDING state..result> = unpack(standing, STANDING.STATE, STANDING.RESULT)
  return final[state] ~= nil and is_count(finished_at)
    and (reason == nil or is_text(reason)) and (result == nil or is_text(result))
    and is_count(standing[STANDING.LEVEL], 1000) and standing[STANDING.LEVEL] > 0
end

local function is_standing(standing)
  local <STANDING fence..lines> = unpack(standing, STANDING.FENCE, STANDING.LINES)
  if not are_counts(<STANDING fence..lines>, standing[STANDING.ATTACHED]) then return false end
  local <STANDING state..result> = unpack(standing, STANDING.STATE, STANDING.RESULT)
  if state ~= nil then return is_end(standing) end
  if finished_at ~= nil or reason ~= nil or result ~= nil then return false end
  local <STANDING task..expires_at> = unpack(standing, STANDING.TASK, STANDING.EXPIRES_AT)
  return is_call(task, version, head_start / 1000000, enqueued_at, expires_at, standing[STANDING.LEVEL])
end

-- The body or the standing of a job; nil for what somebody damaged.
local function body_of(text)
  return fields_of(text, #BODY, &BODY, is_body)
end

local function standing_of(text)
  return fields_of(text, #STANDING, &STANDING, is_standing)
end

-- How a live job stands, nil if it has ended; and how one stood in the end, nil if it is live.
local function live_of(text)
  local standing = standing_of(text)
  return standing and not standing[STANDING.STATE] and standing or nil
end

local function ended_of(text)
  local standing = standing_of(text)
  return standing and standing[STANDING.STATE] and standing or nil
end

-- The number at a place of an array, whatever its other fields are; nil if there is none.
local function number_at(text, least, at)
  local is_read, value = pcall(field_at, text, least, at)
  return is_read and is_whole(value) and value or nil
end

-- The level that a body tells, 0 if it tells none that can be. What looks damaged of a job may be a newer program's way: so
-- its level is read at its place, and believed.
local function level_in(text)
  local level = number_at(text, &BODY, BODY.LEVEL)
  return level and level >= 1 and level <= 1000 and level or 0
end

-- The numbers of batches that a text holds; none if somebody damaged it.
local function lines_in(text)
  local is_read, numbers = pcall(cmsgpack.unpack, text or '')
  return is_read and are_lines(numbers) and numbers or {}
end

-- How far we count what only grows: entries of the log, actions. The numbers that follow must be exact,
-- too: whoever wrote a greater one would make all that is counted later unreadable.
local MOST_COUNTED = 4503599627370496

-- How many entries of the log are gone.
local function gone_before()
  local start = tonumber(call('HGET', settings, 'log_start') or 0)
  return is_count(start, MOST_COUNTED) and start or 0
end

-- When all keys of a queue were last seen to be of our types, by its order.
local sound_at, queues_seen = {}, 0

local function note_sound(key, now)
  if not sound_at[key] then
    queues_seen = queues_seen + 1
    if queues_seen > 10000 then sound_at, queues_seen = {}, 1 end
  end
  sound_at[key] = now
end
