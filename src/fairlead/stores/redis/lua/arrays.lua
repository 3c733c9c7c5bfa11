-- Arrays that grow. Whoever reads one takes it to have at least the fields that every version has. What a newer program
-- put behind those that we know is not looked at, and written back as it came; what an older one does not know of them
-- is nil, and written back with the others.

-- How an array of so many fields begins.
local function head_of(count)
  if count < 16 then return string.char(144 + count) end
  return string.char(220, math.floor(count / 256), count % 256)
end

local BODY_HEAD, STANDING_HEAD, ACT_HEAD = @BODY, @STANDING, @ACT

-- How many bytes an array has before its first field, and how many fields it says to have; nil if it is none.
local function opened(text)
  local first, high, low = string.byte(text, 1, 3)
  if not first then return nil end
  if first >= 144 and first < 160 then return 1, first - 144 end
  if first == 220 and low then return 3, high * 256 + low end
end

-- Whether a text is so many packed values, and nothing else; by pcall.
local function are_values(text, count)
  if count == 0 or text == '' then return count == 0 and text == '' end
  return select('#', cmsgpack.unpack(text)) == count
end

local function gathered(text, size, count, known, at, ...)
  local rest = at > 0 and string.sub(text, at + 1) or ''
  if select('#', ...) < known or not are_values(rest, count - known) then return nil end
  local fields = { ... }
  fields.head, fields.rest = string.sub(text, 1, size), rest
  return fields
end

-- The first fields of an array, up to `known`, with what is around them; nil, or an error, if there is no array of at
-- least so many: called by pcall only.
local function fields_in(text, known, least)
  local size, count = opened(text)
  if not size or count < least then return nil end
  local most = math.min(known, count)
  local fields = gathered(text, size, count, most, cmsgpack.unpack_limit(text, most, size))
  if fields and count < known then fields.head = head_of(known) end
  return fields
end

-- The field that an array has at this place, whatever the others are; nil, or an error, if there is none: by pcall.
local function field_at(text, least, at)
  local size, count = opened(text)
  if size and count >= least then return (select(at + 1, cmsgpack.unpack_limit(text, at, size))) end
end

-- The same, if a question about them is answered yes; else nil.
local function fields_of(text, known, least, question)
  if not text then return nil end
  local is_read, fields = pcall(fields_in, text, known, least)
  if not is_read or not fields then return nil end
  local is_asked, answer = pcall(question, fields)
  return is_asked and answer and fields or nil
end

-- An array with these fields. They are packed one by one, which is much cheaper than to pack a table,
-- and may be nil, for which the library would take a table for a map.
local function packed(fields, known)
  return fields.head .. cmsgpack.pack(unpack(fields, 1, known)) .. fields.rest
end

-- The entries of a list, each as it is packed; nil, or an error, if it is no list: called by pcall only.
local function entries_in(text)
  local first = string.byte(text)
  local at, count = opened(text)
  if first == 221 then
    local a, b, c, d = string.byte(text, 2, 5)
    at, count = 5, ((a * 256 + b) * 256 + c) * 256 + d
  end
  if not at then return nil end
  local entries = {}
  while at > 0 and at < #text do
    local from = at
    at = cmsgpack.unpack_limit(text, 1, from)
    entries[#entries + 1] = string.sub(text, from + 1, at > 0 and at or #text)
  end
  return #entries == count and entries or nil
end

-- The list of these entries.
local function list_of(entries)
  local count = #entries
  local head = count < 65536 and head_of(count)
    or string.char(221, 0, math.floor(count / 65536), math.floor(count / 256) % 256, count % 256)
  return head .. table.concat(entries)
end
