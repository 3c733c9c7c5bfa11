-- Entries: small values beside the jobs. Those of a job are in its queue, each by itself, so that a write costs what it
-- writes. Those of nobody are spread over slots, each of which has the keys of `SLOT` in keys.py.
local entry = { MOST_KEY = 512, MOST_VALUE = 65536 }

-- Whether the fields of an entry are sound; by pcall.
function entry.is_sound(fields)
  local <ENTRY> = unpack(fields, 1, #ENTRY)
  return is_text(kind) and is_text(key) and is_text(value) and is_count(version)
    and (due_at == nil or is_count(due_at)) and (expires_at == nil or is_count(expires_at))
end

-- An entry; nil for what somebody damaged.
function entry.of(text)
  return fields_of(text, #ENTRY, &ENTRY, entry.is_sound)
end

function entry.is_there(fields, now)
  return fields ~= nil and not (fields[ENTRY.EXPIRES_AT] and fields[ENTRY.EXPIRES_AT] <= now)
end

function entry.name_of(fields)
  return fields[ENTRY.KIND] .. '\0' .. fields[ENTRY.KEY]
end

local function is_name(text, most)
  return is_text(text) and #text > 0 and #text <= most and not string.find(text, '%z')
end

-- The changes that a caller gives; all of them can be made, or none is.
function entry.changes_in(text)
  local changes = cmsgpack.unpack(text)
  for n = 1, #changes do
    local <CHANGE> = unpack(changes[n], 1, #CHANGE)
    if not is_name(kind, 64) or not is_name(key, entry.MOST_KEY)
        or value ~= nil and (not is_text(value) or #value > entry.MOST_VALUE)
        or due_at ~= nil and not is_count(due_at) or expires_at ~= nil and not is_count(expires_at) then
      error({ err = 'REFUSED this cannot be an entry' })
    end
  end
  spend(#changes, #text)
  return changes
end

-- What a change makes of an entry: its version and its text, 0 and nothing if it is removed; false if it is refused. Its
-- version is later than any that this call has seen under its name: it may have been there, and been removed.
function entry.changed(old, change, now, name, seen)
  local <CHANGE> = unpack(change, 1, #CHANGE)
  local is_there = entry.is_there(old, now)
  local version = is_there and old[ENTRY.VERSION] or 0
  if expect ~= nil and expect ~= version then return false end
  local last = math.max(old and old[ENTRY.VERSION] or 0, seen[name] or 0)
  seen[name] = last
  if value == nil then return 0, nil end
  version = math.max(last + 1, now)
  seen[name] = version
  local fields = cmsgpack.pack(kind, key, version, due_at, expires_at, value)
  return version, is_there and old.head .. fields .. old.rest or @ENTRY .. fields
end

-- Some entries of an order, as they are kept, and the last member that it came to, '' if there are no more. What an order
-- has is looked for by its text, which takes all of it to have the same score.
function entry.read(order, hash, first, past, most, named)
  level_out(order, MOST)
  local members = call('ZRANGEBYLEX', order, first, past, 'LIMIT', 0, most)
  local texts, last, left = {}, '', MOST_READ
  for n = 1, #members do
    texts[n] = call('HGET', hash, named and named(members[n]) or members[n]) or ''
    left = left - #texts[n]
    if left < 0 or n == most then
      last = members[n]
      break
    end
  end
  spend(#texts, MOST_READ - left)
  return last, texts
end

-- Of a job

function entry.runs_under(id, fence)
  local standing = live_of(call('HGET', standings, id))
  return standing and standing[STANDING.LEASE_UNTIL] > 0 and standing[STANDING.FENCE] == fence
end

-- How a live job stands that may have entries; false if it is not live, or above the level.
function entry.owner(id, level)
  local standing = is_id(id) and live(id)
  return standing and standing[STANDING.LEVEL] <= level and standing or false
end

-- Under which name a job has an entry.
function entry.owned_as(id, kind, key)
  return id .. '\0' .. kind .. '\0' .. key
end

-- The job that has an entry of this name; '' if nobody can.
function entry.owner_of(name)
  return string.match(name, '^([^%z]+)%z[^%z]+%z[^%z]+$') or ''
end

-- Write what became of entries, by name: their texts, or false for those that are gone.
function entry.write_owned(changed)
  local kept, listing, gone_names = {}, {}, {}
  for name, text in pairs(changed) do
    if text then
      kept[#kept + 1], kept[#kept + 2] = name, text
      listing[#listing + 1], listing[#listing + 2] = 0, name
    else
      gone_names[#gone_names + 1] = name
    end
  end
  many('HSET', entries, kept)
  many('ZADD', owned, listing)
  many('HDEL', entries, gone_names)
  many('ZREM', owned, gone_names)
end

-- Let a standing say that its job has entries, if it does not. A job that was never claimed has a standing from here on: that
-- tells what it takes with it when it is forgotten.
function entry.attach(id, standing)
  local attached = standing[STANDING.ATTACHED]
  if attached % 2 == 1 then return end
  standing[STANDING.ATTACHED] = attached + 1
  write_standing(id, standing)
end

-- Of nobody

function entry.due_mark(fields)
  return fields[ENTRY.KIND] .. '\0' .. string.format('%016.0f', fields[ENTRY.DUE_AT]) .. '\0' .. fields[ENTRY.KEY]
end

-- The name of the entry that such a mark is for; '' if it cannot be one.
function entry.marked(member)
  local kind, key = string.match(member, '^([^%z]+)%z%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%z(.*)$')
  return kind and kind .. '\0' .. key or ''
end

function entry.mark(name, fields)
  call('ZADD', listed, 0, name)
  if fields[ENTRY.DUE_AT] then call('ZADD', awaited, 0, entry.due_mark(fields)) end
  if fields[ENTRY.EXPIRES_AT] then call('ZADD', passing, fields[ENTRY.EXPIRES_AT], name) end
end

function entry.remove(name, fields)
  call('HDEL', loose, name)
  call('ZREM', listed, name)
  if not fields or fields[ENTRY.EXPIRES_AT] then call('ZREM', passing, name) end
  if fields and fields[ENTRY.DUE_AT] then call('ZREM', awaited, entry.due_mark(fields)) end
end

function entry.change_loose(change, now, seen)
  local name = change[CHANGE.KIND] .. '\0' .. change[CHANGE.KEY]
  local known = call('HGET', loose, name)
  local old = entry.of(known)
  local version, text = entry.changed(old, change, now, name, seen)
  if not version then return false end
  if known then entry.remove(name, old) end
  if text then
    call('HSET', loose, name, text)
    entry.mark(name, entry.of(text))
  end
  return version
end
