#!lua flags=no-writes
-- Where some of the waiting jobs stand, whether they are due or not.
--   ARGV: ready or due, the rank of the first to look at, and how many
--   answers how many were looked at, and of those that wait their id, order_at and run_at
local keys = { ready = ready, due = due }
local first, most = count_of(ARGV[2]), count_of(ARGV[3], 1000)
local found = call('ZRANGE', keys[ARGV[1]], first, first + most - 1, 'WITHSCORES')
local answers, looked, left = {}, 0, MOST_READ

for n = 1, #found, 2 do
  if left < 0 then break end
  local id, score = found[n], tonumber(found[n + 1])
  looked = looked + 1
  local text = call('HGET', bodies, id) or ''
  local body = body_of(text)
  left = left - #text
  if body then
    local order_at = order_of(body, ARGV[1] == 'ready' and score, score)
    answers[#answers + 1] = id
    answers[#answers + 1] = order_at
    answers[#answers + 1] = order_at + body[BODY.PRIORITY] * 1000000
  end
end
return { looked, answers }
