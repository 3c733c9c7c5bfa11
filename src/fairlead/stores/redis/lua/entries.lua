-- Entries: small values beside the jobs. Those of a job are one list in its queue. Those of nobody are spread over slots,
-- each of which has the keys of `SLOT` in keys.py.
local entry = { MOST_KEY = 512, MOST_VALUE = 65536 }

-- Whether the fields of an entry are sound; by pcall.
function entry.is_sound(fields)
  local <ENTRY> = unpack(fields, 1, #ENTRY)
  return is_text(kind) and is_text(key) and is_text(value) and is_count(version)
    and (due_at == nil or is_count(due_at)) and (expires_at == nil or is_count(expires_at))
end

-- An entry; nil for what somebody damaged.
function entry.of(text)
  return fields_of(text, #ENTRY, entry.is_sound)
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

-- What a change makes of an entry: its version and its text, 0 and nothing if it is removed; false if it is refused.
function entry.changed(old, change, now)
  local <CHANGE> = unpack(change, 1, #CHANGE)
  local is_there = entry.is_there(old, now)
  local version = is_there and old[ENTRY.VERSION] or 0
  if expect ~= nil and expect ~= version then return false end
  if value == nil then return 0, nil end
  version = math.max(version + 1, now)
  local fields = cmsgpack.pack(kind, key, version, due_at, expires_at, value)
  return version, is_there and old.head .. fields .. old.rest or @ENTRY .. fields
end

-- Of a job

function entry.runs_under(id, fence)
  local standing = live_of(call('HGET', standings, id))
  return standing and standing[STANDING.LEASE_UNTIL] > 0 and standing[STANDING.FENCE] == fence
end

-- What a job has, each as it is packed, and by name where that is in the list; what has expired is left out, what
-- cannot be read is left for the repair. False if the job may have no entries: it is not live, or above the level.
function entry.owned(id, level, now)
  local standing = is_text(id) and live(id)
  if not standing or standing[STANDING.LEVEL] > level then return false end
  local is_read, found = pcall(entries_in, call('HGET', entries, id) or head_of(0))
  local list = { standing = standing, texts = {}, at = {} }
  for _, text in ipairs(is_read and found or {}) do
    local old = entry.of(text)
    if not old or entry.is_there(old, now) then
      list.texts[#list.texts + 1] = text
      if old then list.at[entry.name_of(old)] = #list.texts end
    end
  end
  return list
end

function entry.change_owned(list, change, now)
  local name = change[CHANGE.KIND] .. '\0' .. change[CHANGE.KEY]
  local at = list.at[name] or #list.texts + 1
  local version, text = entry.changed(entry.of(list.texts[at]), change, now)
  if version then
    list.texts[at], list.at[name], list.is_changed = text or false, at, true
  end
  return version
end

-- A job that was never claimed has a standing from here on: that tells what it takes with it when it is forgotten.
function entry.write_owned(id, list)
  local left = {}
  for n = 1, #list.texts do
    if list.texts[n] then left[#left + 1] = list.texts[n] end
  end
  if #left == 0 then
    call('HDEL', entries, id)
    return
  end
  call('HSET', entries, id, list_of(left))
  entry.attach(id, list.standing)
end

-- Let a standing say that its job has entries, if it does not.
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

function entry.change_loose(change, now)
  local name = change[CHANGE.KIND] .. '\0' .. change[CHANGE.KEY]
  local known = call('HGET', loose, name)
  local old = entry.of(known)
  local version, text = entry.changed(old, change, now)
  if not version then return false end
  if known then entry.remove(name, old) end
  if text then
    call('HSET', loose, name, text)
    entry.mark(name, entry.of(text))
  end
  return version
end
