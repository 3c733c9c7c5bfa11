#!lua flags=allow-oom
-- Write down that a worker lives.
--   KEYS: workers. ARGV: now, its id, lease, [capable, pools, processes]
--   A worker is kept as [started_at, live_until, capable, pools, processes].
local now = clock(ARGV[1])
local is_read, known = pcall(cmsgpack.unpack, call('HGET', KEYS[1], ARGV[2]) or '')
local started_at = now
local since = is_read and type(known) == 'table' and known[1]
if type(since) == 'number' and since % 1 == 0 and since >= 0 and since < now then
  started_at = since
end
-- What the worker says of itself is kept as it came: an empty map would not survive Lua.
local head = cmsgpack.pack({ started_at, now + count_of(ARGV[3], LATEST - now) })
call('HSET', KEYS[1], ARGV[2], '\149' .. string.sub(head, 2) .. string.sub(ARGV[4], 2))
return now
