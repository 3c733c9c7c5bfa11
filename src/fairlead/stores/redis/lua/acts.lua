-- What people do. text: [id, number, who, verb, target, job_id], where the id is that of the action with a
-- mark of who, verb and target. Calls of one action are one line with one count. The line also keeps what each
-- of its calls was answered (core/answers.py): ;mark:looked:missed. where missed are the places, from 0,
-- of what the call looked at and did nothing to.

local function is_act(line)
  return is_count(line[ACT.COUNT])
end

-- The line of an action; nil if there is none, and an empty one if it cannot be read.
local function act_line(id)
  local text = call('HGET', acted, id)
  if not text then return nil end
  local line = fields_of(text, #ACT, &ACT, is_act)
  if not line then return {} end
  if type(line[ACT.ANSWERS]) ~= 'string' then line[ACT.ANSWERS] = '' end
  return line
end

-- What a call of an action asks for, as a short text.
local function mark_of(...)
  local words = { ... }
  for n = 1, #words do words[n] = #words[n] .. ' ' .. words[n] end
  return string.sub(redis.sha1hex(table.concat(words)), 1, 16)
end

-- How such a call was answered before: how many it looked at, and a set of the places where it did nothing.
-- Nil if it is new.
local function past_of(text, mark)
  local line = act_line(cmsgpack.unpack(text)[BY.ID])
  if not line or not line[ACT.ANSWERS] then return nil end
  local looked, places = string.match(line[ACT.ANSWERS], ';' .. mark .. ':(%d+):([%d,]*)%.')
  if not looked then return nil end
  local missed = {}
  for place in string.gmatch(places, '%d+') do missed[tonumber(place)] = true end
  return tonumber(looked), missed
end

-- The ids that such a call touched.
local function past_ids(ids, looked, missed)
  local touched = {}
  for n = 1, math.min(looked, #ids) do
    if not missed[n - 1] then touched[#touched + 1] = ids[n] end
  end
  return touched
end

-- The places of what a call looked at and did not touch.
local function missed_in(ids, looked, touched)
  local is_touched, missed = {}, {}
  for n = 1, #touched do is_touched[touched[n]] = true end
  for n = 1, looked do
    if not is_touched[ids[n]] then missed[#missed + 1] = n - 1 end
  end
  return table.concat(missed, ',')
end

-- Write down what a person did, and how it is answered; no mark, no answer. Each edit keeps what it replaced, in a line of its own.
local function write_act(text, count, now, before, mark, looked, missed)
  local by = cmsgpack.unpack(text)
  local id = by[BY.ID]
  local answer = mark and ';' .. mark .. ':' .. looked .. ':' .. missed .. '.' or ''
  local line = act_line(id)
  if line and line[ACT.COUNT] and not line[ACT.BEFORE] and not before then
    local last = line[ACT.DONE_AT]
    line[ACT.DONE_AT] = is_count(last) and math.max(last, now) or now
    line[ACT.COUNT] = line[ACT.COUNT] + count
    line[ACT.ANSWERS] = line[ACT.ANSWERS] .. answer
  else
    if line and line[ACT.ANSWERS] then -- Who repeats this looks there.
      line[ACT.ANSWERS] = line[ACT.ANSWERS] .. answer
      call('HSET', acted, id, packed(line, #ACT))
    end
    if line then id = id .. ' ' .. by[BY.NUMBER] end
    line = {
      [ACT.DONE_AT] = now, [ACT.WHO] = by[BY.WHO], [ACT.VERB] = by[BY.VERB], [ACT.TARGET] = by[BY.TARGET],
      [ACT.COUNT] = count, [ACT.BEFORE] = before, [ACT.JOB_ID] = by[BY.JOB_ID], [ACT.ANSWERS] = answer,
    }
    line.head, line.rest = ACT_HEAD, ''
    call('ZADD', acts, by[BY.NUMBER], id)
  end
  call('HSET', acted, id, packed(line, #ACT))
end
