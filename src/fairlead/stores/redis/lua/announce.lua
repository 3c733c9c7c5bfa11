#!lua flags=allow-oom
-- Write down that a worker lives, and forget those that fell silent a day ago.
--   KEYS: workers. ARGV: now, its id, lease, [capable, pools, processes]
--   A worker is kept as [started_at, live_until, capable, pools, processes].
local now = clock(ARGV[1])
local DAY = 86400 * 1000000
local all = call('HGETALL', KEYS[1])
local started_at = now
for n = 1, #all, 2 do
  local is_read, known = pcall(cmsgpack.unpack, all[n + 1])
  is_read = is_read and type(known) == 'table'
    and type(known[1]) == 'number' and type(known[2]) == 'number'
  if all[n] == ARGV[2] then
    if is_read then started_at = known[1] end
  elseif not is_read or known[2] < now - DAY then
    call('HDEL', KEYS[1], all[n])
  end
end
-- What the worker says of itself is kept as it came: an empty map would not survive Lua.
local head = cmsgpack.pack({ started_at, now + ARGV[3] })
call('HSET', KEYS[1], ARGV[2], '\149' .. string.sub(head, 2) .. string.sub(ARGV[4], 2))
return now
