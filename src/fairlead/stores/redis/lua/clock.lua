-- What the library begins with. A server that loads it has neither redis.call nor cjson yet, so each
-- function sets these when it is called.
local null, call

-- The greatest number that Lua holds exactly; no instant and no fence is later.
local LATEST = 9007199254740991

-- A number that a caller gives: whole, and from zero up to some most. A loop up to any other one might
-- not end, and would keep everybody waiting.
local function count_of(text, most)
  local value = tonumber(text)
  if not value or value % 1 ~= 0 or value < 0 or value > (most or LATEST) then
    error({ err = string.format('ERR a whole number from 0 to %.0f is wanted', most or LATEST) })
  end
  return value
end

-- What time it is, by the server's clock; tests move another one. All queues of one call have the same.
local instant

local function clock(at)
  if at ~= '' then return count_of(at) end
  if not instant then
    local time = call('TIME')
    instant = time[1] * 1000000 + time[2]
  end
  return instant
end
