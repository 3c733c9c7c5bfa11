#!lua flags=allow-oom
-- Replace the payload of a dead letter that is not above the level, if it still is what it was.
--   ARGV: now, id, level, what it was, payload, version, who does it (see write_act)
--   answers whether it did
local now, id, level = clock(ARGV[1]), ARGV[2], count_of(ARGV[3])
local mark = mark_of('edit', id, ARGV[4], ARGV[5], ARGV[6])
if past_of(ARGV[7], mark) then return 1 end
local body = ended_in(id, { dead = true }) and body_of(call('HGET', bodies, id))
if not body or body[BODY.PAYLOAD] ~= ARGV[4] or body[BODY.LEVEL] > level then return 0 end
body[BODY.PAYLOAD], body[BODY.VERSION] = ARGV[5], count_of(ARGV[6], 2147483647)
call('HSET', bodies, id, packed(body, #BODY))
write_act(ARGV[7], 1, now, ARGV[4], mark, 1, '')
return 1
