-- What functions know: the keys of one queue, and what is kept under them. In the library it stands
-- after clock.lua and calls.lua, before all that uses keys; the verbs follow, each as a function (functions.py).
--
-- A function works on one queue at a time. All keys of a queue are in one slot, because its name is their
-- hash tag. Which of them a function gets is said in functions.py; it has no name for the others.
--
--   bodies    HASH  id -> body              every job the queue knows, in whatever state
--   standings HASH  id -> standing          jobs that were claimed before, are parked, or have ended
--   errors    HASH  id -> [failed run]      jobs that failed at least once
--   ready     ZSET  id by order_at          waits for its turn
--   due       ZSET  id by run_at            waits for its time
--   leases    ZSET  id by lease_until       runs
--   lost      ZSET  id by order_at          its lease has passed; waits to be taken over
--   parked    ZSET  reason,key,id           waits outside the order, behind a gate; before the id
--                                           stands w if it waits, r if its run was lost
--   expiring  ZSET  id by expires_at        waits, and must not for ever
--   done      ZSET  id by finished_at       is done
--   cancelled ZSET  id by finished_at       is cancelled
--   dead      ZSET  id by finished_at       is a dead letter
--   gone      HASH  id -> lines             was deleted, but has lines in the log; see there
--   log       LIST  of batches              the attempt log: when they ended in 16 digits, then lines
--   paused    HASH  since -> instant        no further job may start
--   settings  HASH                          log_start: how many entries of the log are gone;
--                                           apart: 1 if a job ever came with a priority
--   entries   HASH  id,kind,key -> entry    what belongs to jobs; their standings tell that they have some (attached)
--   owned     ZSET  id,kind,key             the same in order
--   acts      ZSET  action by number        what people did here, in order
--   acted     HASH  action -> line          and what that was
--
-- Entries that belong to nobody are in slots, which are queues that nobody can have (keys.py):
--
--   loose     HASH  kind,key -> entry       all of them
--   listed    ZSET  kind,key                in order
--   awaited   ZSET  kind,due_at,key         those that fall due, with 16 digits, in order
--   passing   ZSET  kind,key by expires_at  those that expire
--
-- A live job is in exactly one of ready, due, leases, lost and parked, any other in one of done,
-- cancelled and dead. Values are MessagePack arrays, whose fields are told in layout.py. Here
-- STANDING.FENCE is the number of a field, #STANDING says how many we know, &STANDING how many there are in any, @STANDING is
-- what an array of as many as we know begins with, <STANDING> names them all in their order, <STANDING fence..lines> some of
-- them, and nil<STANDING fence..lines> is as many packed nils: functions.py writes numbers, names and texts in
-- their place. Times are microseconds, which a number of Lua holds exactly until the year 2255.

local bodies, standings, errors, ready, due, leases, lost, parked, expiring
local done, cancelled, dead, gone, log, paused, settings, entries, owned, acts, acted
local loose, listed, awaited, passing

local final = {} -- The keys of the final states, by state.

local ask_for_all -- Raises if a key is of another type than ours; see functions.py.

local MOST = 1000
local ALONE = 3 -- Who has shared so many deaths of processes has the next one to itself.

-- Do a command with a list of any length; what it answers, as one list or one sum. With an empty list it does nothing
-- and answers an empty list.
local function many(command, key, list)
  if #list <= MOST then
    if #list == 0 then return {} end
    return call(command, key, unpack(list))
  end
  local answers, sum = {}, 0
  for first = 1, #list, MOST do
    local part = call(command, key, unpack(list, first, math.min(first + MOST - 1, #list)))
    if type(part) == 'table' then
      for n = 1, #part do answers[#answers + 1] = part[n] end
    else
      sum = sum + part
    end
  end
  return #answers > 0 and answers or sum
end
