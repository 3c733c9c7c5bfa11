#!lua flags=no-writes
-- Ids of a place in its order, after a key; those with the same score stand by id.
--   ARGV: the place, up or down, how many, and the score and the id of the key, or nothing to begin
--   answers ids and their scores; going down, the last one first
local places = {
  ready = ready, due = due, leases = leases, lost = lost, done = done, cancelled = cancelled, dead = dead,
}
local key, most, id = places[ARGV[1]], count_of(ARGV[3], 1000), ARGV[5]
local score = tonumber(ARGV[4])
if not key or not score and ARGV[4] ~= '' then error({ err = 'ERR no such place' }) end

local answers = {}
local function add(found, n)
  answers[#answers + 1] = found[n]
  answers[#answers + 1] = found[n + 1]
end

if ARGV[2] == 'down' then
  local upto = score and rank_of(key, score, id) or call('ZCARD', key)
  local found = upto > 0 and call('ZRANGE', key, math.max(0, upto - most), upto - 1, 'WITHSCORES') or {}
  for n = #found - 1, 1, -2 do add(found, n) end
else
  local from = score and rank_of(key, score, id) or 0
  -- The job of the key may be there still.
  local found = call('ZRANGE', key, from, from + most, 'WITHSCORES')
  local first = score and found[1] == id and tonumber(found[2]) == score and 3 or 1
  for n = first, math.min(#found, first + 2 * most - 1), 2 do add(found, n) end
end
spend(#answers / 20, 0)
return answers
