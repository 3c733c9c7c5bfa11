#!lua flags=no-writes
-- Some entries of this slot, by key or by when they fall due, expired or not.
--   ARGV: now, listed or awaited, the end of the range, how many at most; its beginning
--   answers now, the last member that it came to, '' if there are no more, and the entries as they are kept
local now, most, is_due = clock(ARGV[1]), count_of(ARGV[4], 1000), ARGV[2] == 'awaited'
local members = call('ZRANGEBYLEX', is_due and awaited or listed, ARGV[5], ARGV[3], 'LIMIT', 0, most)
local texts, last, left = {}, '', MOST_READ
for n = 1, #members do
  texts[n] = call('HGET', loose, is_due and entry.marked(members[n]) or members[n]) or ''
  left = left - #texts[n]
  if left < 0 or n == most then
    last = members[n]
    break
  end
end
spend(#texts, MOST_READ - left)
return { now, last, texts }
