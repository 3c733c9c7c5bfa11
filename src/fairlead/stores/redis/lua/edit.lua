#!lua flags=allow-oom
-- Replace the payload of a dead letter, if it still is what it was.
--   ARGV: now, id, what it was, payload, version, who does it (see write_act)
--   answers whether it did
local now, id = clock(ARGV[1]), ARGV[2]
local mark = mark_of('edit', id, ARGV[3], ARGV[4], ARGV[5])
if past_of(ARGV[6], mark) then return 1 end
local body = end_in(id, { dead = true }) and body_of(call('HGET', bodies, id))
if not body or body[PAYLOAD] ~= ARGV[3] then return 0 end
body[PAYLOAD], body[VERSION] = ARGV[4], count_of(ARGV[5], 2147483647)
call('HSET', bodies, id, packed(body, PAYLOAD))
write_act(ARGV[6], 1, now, ARGV[3], mark, 1, '')
return 1
