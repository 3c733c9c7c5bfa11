#!lua
-- Write entries of this slot, which belong to nobody.
--   ARGV: now, changes
--   answers for each change its version, 0 if the entry is gone, nothing if it is refused
local now, changes, answers, seen = clock(ARGV[1]), entry.changes_in(ARGV[2]), {}, {}
for n = 1, #changes do answers[n] = entry.change_loose(changes[n], now, seen) end
return answers
