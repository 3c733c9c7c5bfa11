-- What the library begins with. A server that loads it has neither redis.call nor cjson yet, so each
-- function sets these when it is called.
local null, call

-- What time it is, by the server's clock; tests move another one.
local function clock(at)
  if at ~= '' then return tonumber(at) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
