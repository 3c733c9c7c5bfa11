#!lua flags=no-writes
-- Ids of a place in its order, after a key; those with the same score stand by id.
--   ARGV: the place, up or down, how many, and the score and the id of the key, or nothing to begin
--   answers ids and their scores; going down, the last one first
local places = {
  ready = ready, due = due, leases = leases, lost = lost, done = done, cancelled = cancelled, dead = dead,
}
local key, score = places[ARGV[1]], tonumber(ARGV[4])
if not key or not score and ARGV[4] ~= '' then error({ err = 'ERR no such place' }) end

local answers = next_in(key, ARGV[2] == 'down', count_of(ARGV[3], 1000), score, ARGV[5])
spend(#answers / 20, 0)
return answers
