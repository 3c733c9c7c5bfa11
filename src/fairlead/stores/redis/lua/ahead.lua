#!lua flags=no-writes
-- How many due jobs stand before one in the order.
--   ARGV: now, id
--   answers nothing if the job is not live, else its order_at, whether jobs came with a head start,
--   and how many are before it: with head starts only those of which the order alone tells that
--   they are due, which are the first of ready
local now, id = clock(ARGV[1]), ARGV[2]
local standing = live(id)
if not standing then return {} end
local order_at = standing[STANDING.ORDER_AT]

-- Where all that is due is before it, ids need not be compared.
local function before(key, at)
  if order_at > now then return call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', at)) end
  return rank_of(key, at, id)
end

if call('HEXISTS', settings, 'apart') == 1 then
  local DAY = 86400 * 1000000
  local sure = string.format('%.0f', math.min(order_at, now - DAY))
  return { order_at, 1, call('ZCOUNT', ready, '-inf', '(' .. sure) }
end
local at = math.min(order_at, now + 1)
return { order_at, 0, before(ready, at) + before(due, at) }
