#!lua flags=no-writes
-- Check some jobs of this queue, or some marks of jobs, as they are at one moment.
--   ARGV: now, the part whose entries are checked, cursor, level; jobs above it are left out
--   answers the cursor to go on with, the ids, for each of them what is wrong, or '', how each
--   is parked, or '', and of sound bodies the options, which the caller can read;
--   a dead letter may be unreadable, if it says so
local now, part, level = clock(ARGV[1]), ARGV[2], count_of(ARGV[4])
check.begin()
local marks = { parked = parked, expiring = expiring }
for state, key in pairs(final) do marks[state] = key end
for name, key in pairs(check.orders) do marks[name] = key end

-- A job that is known is checked with its body; here only that its mark is the right one.
local function wrong_mark(id, member)
  if part == 'bodies' or call('HEXISTS', bodies, id) == 0 then
    return check.wrong(id, part, now)
  end
  local standing = part == 'parked' and check.standing(call('HGET', standings, id))
  local is_parked = standing and standing[STANDING.GATE] and parked_as(id, standing) == member
  if part == 'parked' and not is_parked then return 'is parked as another' end
  return nil
end

-- A few at a time, as long as neither they nor their bytes are too many.
local command = check.hashes[part] and 'HSCAN' or 'ZSCAN'
local ids, problems, members, options = {}, {}, {}, {}
local cursor, scans = ARGV[3], 0
repeat
  local page = call(command, check.hashes[part] or marks[part], cursor, 'COUNT', 4)
  cursor, scans = page[1], scans + 1
  for n = 1, #page[2], 2 do
    local member = page[2][n]
    local id = part == 'parked' and parked_id(member) or member
    local text = part == 'bodies' and page[2][n + 1]
    local body = text and body_of(text)
    local standing = body and body[BODY.OPTIONS] and ended_of(check.get(standings, id))
    if standing and standing[STANDING.REASON] == 'unreadable' then body = nil end
    local problem = wrong_mark(id, member)
    if problem and not text then text = check.get(bodies, id) end
    if level_in(text) <= level then
      ids[#ids + 1] = id
      problems[#problems + 1] = problem or ''
      members[#members + 1] = part == 'parked' and member or ''
      options[#options + 1] = body and body[BODY.OPTIONS] or ''
    end
    check.left = check.left - #page[2][n + 1]
  end
until cursor == '0' or #ids >= 100 or scans >= 100 or check.left < 0
return { cursor, ids, problems, members, options }
