#!lua flags=allow-oom
-- Remove entries of this slot that have expired.
--   ARGV: now, how many at most
--   answers how many it removed
local now, most = clock(ARGV[1]), count_of(ARGV[2], 1000)
local count, left = 0, MOST_READ
for _, name in ipairs(call('ZRANGEBYSCORE', passing, '-inf', now, 'LIMIT', 0, most)) do
  if left < 0 then break end
  local text = call('HGET', loose, name) or ''
  local fields = entry.of(text)
  left = left - #text
  if fields and not entry.is_there(fields, now) then
    entry.remove(name, fields)
    count = count + 1
  else -- A mark that is not true.
    call('ZREM', passing, name)
    if fields then entry.mark(name, fields) end
  end
end
spend(count, MOST_READ - left)
return count
