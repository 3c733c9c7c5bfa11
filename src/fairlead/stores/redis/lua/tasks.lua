-- Tasks that workers know, and jobs that are parked because no live worker knows their task.
local UNKNOWN = 'no_capable_worker'

-- The tasks that a worker knows, with their versions; nil for all. Its next call tells the same ones.
local capable_text, capable_tasks = '', nil

local function capable_of(text)
  if text ~= capable_text then
    local tasks = text ~= '' and cmsgpack.unpack(text) or nil
    capable_text, capable_tasks = text, tasks
  end
  return capable_tasks
end

-- The key that a job of a task is parked under: those of one task stand by their versions.
local function task_key(task, version)
  return task .. '\0' .. string.format('%010d', version)
end

-- The first of the parked whose tasks somebody knows; nil knows them all.
local function known_by(capable, most)
  local from = '[' .. UNKNOWN .. '\0'
  if not capable then
    return call('ZRANGEBYLEX', parked, from, '(' .. UNKNOWN .. '\1', 'LIMIT', 0, most)
  end
  local members = {}
  for task, version in pairs(capable) do
    local past = '(' .. UNKNOWN .. '\0' .. task_key(task, version + 1)
    local found = call('ZRANGEBYLEX', parked, from .. task .. '\0', past, 'LIMIT', 0, most - #members)
    for n = 1, #found do members[#members + 1] = found[n] end
    if #members >= most then break end
  end
  return members
end

-- Bring back jobs that were parked, now that somebody knows their tasks.
local function bring_known(capable, now, most, level, claim)
  if call('ZCARD', parked) == 0 then return 0 end
  level_out(parked, most)
  return bring_back(known_by(capable, most), now, level, claim)
end
