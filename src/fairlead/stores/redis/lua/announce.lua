#!lua flags=allow-oom
-- Write down that a worker lives.
--   KEYS: workers. ARGV: now, its id, lease, what it says of itself, packed: the fields of a WORKER after live_until
local now = clock(ARGV[1])
local live_until = now + count_of(ARGV[3], LATEST - now)
local known = fields_of(call('HGET', KEYS[1], ARGV[2]), #WORKER, &WORKER, function() return true end)
local since = known and known[WORKER.STARTED_AT]
local started_at = is_count(since) and since < now and since or now
-- What the worker says of itself is kept as it came: an empty map would not survive Lua.
local head, rest = head_of(#WORKER), ''
if known then head, rest = known.head, known.rest end
call('HSET', KEYS[1], ARGV[2], head .. cmsgpack.pack(started_at, live_until) .. ARGV[4] .. rest)
