#!lua flags=no-writes
-- What a claim would look at: the first jobs in order that do not run, whichever gate holds them.
--   ARGV: now, how many, capable (task -> version, '' for any), full (limit -> keys that have no room)
--   answers whether the queue is paused, and of each job what a Head has
local now, limit = count_of(ARGV[1]), math.min(count_of(ARGV[2]), 10000)
local capable = ARGV[3] ~= '' and cmsgpack.unpack(ARGV[3]) or nil
local heads, left = {}, 8000000 -- It reads about as many bytes as a claim would.

-- Add a job, if it is due and does not run.
local function add(id, score, is_due)
  if not is_id(id) or left <= 0 then return false end
  local standing = live_of(call('HGET', standings, id))
  if not standing then
    local text = call('HGET', bodies, id) or ''
    local body = body_of(text)
    left = left - #text
    if not body then return false end
    standing = first_standing(body, order_of(body, not is_due and score, score))
  end
  local run_at = standing[STANDING.ORDER_AT] + standing[STANDING.HEAD_START]
  if standing[STANDING.LEASE_UNTIL] > now or run_at > now then return false end
  heads[#heads + 1] = {
    id, standing[STANDING.TASK], standing[STANDING.VERSION], standing[STANDING.ORDER_AT], run_at,
    standing[STANDING.EXPIRES_AT] or false, standing[STANDING.LEASE_UNTIL] > 0 and 1 or 0,
    standing[STANDING.LEVEL],
  }
  return true
end

-- Jobs that stand in an order already: as many as are asked for, and not much further.
local function add_first(key)
  local added = 0
  for from = 0, limit + LOOK, STEP do
    local found = call('ZRANGE', key, from, from + STEP - 1, 'WITHSCORES')
    for n = 1, #found, 2 do
      if added == limit then return end
      if add(found[n], tonumber(found[n + 1])) then added = added + 1 end
    end
    if #found < 2 * STEP or left <= 0 then return end
  end
end

-- Jobs that are parked for a limit, under keys that have room.
local function add_open(gate, keys)
  local is_full = {}
  for n = 1, #keys do is_full[keys[n]] = true end
  local members = call('ZRANGEBYLEX', parked, '[' .. gate .. '\0', '(' .. gate .. '\1', 'LIMIT', 0, LOOK)
  for n = 1, #members do
    local id = parked_id(members[n])
    local key = string.sub(members[n], #gate + 2, -#id - 3)
    if not is_full[key] then add(id, 0) end
  end
end

add_first(ready)
add_first(lost)
for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, LOOK)) do add(id, 0) end
local found = call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, LOOK)
for n = 1, #found, 2 do add(found[n], tonumber(found[n + 1]), true) end
for _, member in ipairs(known_by(capable, LOOK)) do add(parked_id(member), 0) end
for gate, keys in pairs(cmsgpack.unpack(ARGV[4])) do add_open(gate, keys) end

table.sort(heads, function(a, b)
  if a[4] ~= b[4] then return a[4] < b[4] end
  return less(a[1], b[1])
end)
for n = #heads, limit + 1, -1 do heads[n] = nil end
-- The bytes of their payloads and options, as long as these are not too much to read.
for n = 1, #heads do
  local body = left > 0 and body_of(call('HGET', bodies, heads[n][1]))
  local size = body and #body[BODY.PAYLOAD] + #(body[BODY.OPTIONS] or '') or call('HSTRLEN', bodies, heads[n][1])
  left, heads[n][9] = left - size, size
end
return { call('HEXISTS', paused, 'since'), heads }
