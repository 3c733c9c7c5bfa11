#!lua flags=no-writes
-- Which of many queues have the next ids of a place, in its order. Of each queue only its own next one counts.
--   KEYS: the place in each queue
--   ARGV: up or down, how many, and the score and the id of the key to go on after, or nothing to begin
--   answers for each of those queues the number of its key, and the id and its score
local is_down, most, score = ARGV[1] == 'down', count_of(ARGV[2], 1000), tonumber(ARGV[3])
if not score and ARGV[3] ~= '' then error({ err = 'ERR no such place' }) end

local heads = {}
for n = 1, #KEYS do
  -- A key of another type than ours harms only its own queue.
  local is_read, found = pcall(next_in, KEYS[n], is_down, 1, score, ARGV[4])
  if is_read and found[1] then heads[#heads + 1] = { n, found[1], found[2], tonumber(found[2]) } end
end
table.sort(heads, function(a, b)
  if is_down then a, b = b, a end
  if a[4] ~= b[4] then return a[4] < b[4] end
  return less(a[2], b[2])
end)

local answers = {}
for n = 1, math.min(#heads, most) do
  for field = 1, 3 do answers[#answers + 1] = heads[n][field] end
end
return answers
