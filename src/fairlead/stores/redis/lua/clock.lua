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

-- A name that a caller gives, which is written into every job that it claims: UTF-8, or nobody could
-- read those jobs again.
local function name_of(text)
  local single_bytes = string.gsub(text, '[\194-\244][\128-\191]+', '')
  if #text == 0 or #text > 1000 or string.find(single_bytes, '[\128-\255]') then
    error({ err = 'ERR a name of 1 to 1,000 bytes of UTF-8 is wanted' })
  end
  return text
end

-- What time it is, by the server's clock; tests move another one.
local function clock(at)
  if at ~= '' then return count_of(at) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
