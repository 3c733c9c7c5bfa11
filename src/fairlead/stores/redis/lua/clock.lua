-- What every script begins with. Whoever tests moves the clock; else it is the server's.
local null, call = cjson.null, redis.call

local function clock(at)
  if at ~= '' then return tonumber(at) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
