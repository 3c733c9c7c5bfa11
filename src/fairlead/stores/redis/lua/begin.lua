#!lua flags=no-writes
-- Ids that begin with a text. There is no order of ids: the names of all bodies are looked through, some at a time,
-- and nothing is answered of those that begin otherwise.
--   ARGV: the text, and where to go on: 0 at first
--   answers where to go on, 0 at the end, and the ids
local pattern = string.gsub(ARGV[1], '[%*%?%[%]%^%-\\]', '\\%0') .. '*'
local at, found = unpack(call('HSCAN', bodies, count_of(ARGV[2]), 'MATCH', pattern, 'COUNT', 1000))
local ids = {}
for n = 1, #found, 2 do ids[#ids + 1] = found[n] end
spend(100, 0)
return { at, ids }
