#!lua flags=no-writes
-- Where some of the waiting jobs stand, whichever gate holds them.
--   ARGV: ready, due or unknown, the rank of the first to look at, and how many
--   answers how many were looked at, and of those that wait their id, order_at and run_at
local keys = { ready = ready, due = due, unknown = unknown }
local first, most = count_of(ARGV[2]), count_of(ARGV[3], 1000)
local found = call('ZRANGE', keys[ARGV[1]], first, first + most - 1, 'WITHSCORES')
local answers, looked, left = {}, 0, MOST_READ

local function add(id, order_at, run_at)
  answers[#answers + 1] = id
  answers[#answers + 1] = order_at
  answers[#answers + 1] = run_at
end

for n = 1, #found, 2 do
  if left < 0 then break end
  local id, score = found[n], tonumber(found[n + 1])
  looked = looked + 1
  if ARGV[1] == 'unknown' then
    id = unknown_id(id)
    local run = live_run(id)
    if run and run[LEASE_UNTIL] == 0 then
      add(id, run[ORDER_AT], run[ORDER_AT] + run[HEAD_START])
    end
  else
    local text = call('HGET', bodies, id) or ''
    local body = body_of(text)
    left = left - #text
    if body then
      local order_at = order_of(body, ARGV[1] == 'ready' and score, score)
      add(id, order_at, order_at + body[PRIORITY] * 1000000)
    end
  end
end
return { looked, answers }
