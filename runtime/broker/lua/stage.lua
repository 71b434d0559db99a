#!lua flags=allow-oom
-- Keeps an outcome in the gate, to be published step by step where its targets lie in other slots. Whoever holds the
-- gate next publishes it; the flow does not run again.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] gate   hash   state machine of the run
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] entry id
-- ARGV[4] token
-- ARGV[5] event id
-- ARGV[6] the outcome (JSON)
-- ARGV[7] 1: it is a dead letter, which a cancelled event does not get
-- Returns
--   {1, generation, first, now} done: what the ids of its publications are made of; when it first began; the time
--   {2} this token has settled before
--   {3} nothing was kept: the event was cancelled
--  {-2} the token holds nothing any more
local stream, gate = KEYS[1], KEYS[2]
local group, me, id, token, event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Whether this token may settle: 1 yes, 2 it has, -2 it may not. A gate that is gone leaves it to the pending list.
local function fence()
  if redis.call('HEXISTS', gate, 'o:' .. token) == 1 then return 2 end
  local h = redis.call('HMGET', gate, 'state', 'token')
  if not h[1] then
    local p = redis.pcall('XPENDING', stream, group, id, id, 1)
    return (not p.err and p[1] and p[1][2] == me) and 1 or -2
  end
  return (h[2] == token and (h[1] == 'running' or h[1] == 'staged')) and 1 or -2
end

local settled = fence()
if settled ~= 1 then return {settled} end
local h = redis.call('HMGET', gate, 'state', 'cancel', 'gen', 'first')
-- Once staged it may be published in part: it is too late to cancel it.
if ARGV[7] == '1' and h[2] == '1' and h[1] ~= 'staged' then return {3} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSET', gate, 'state', 'staged', 'event', event, 'entry', id, 'token', token, 'worker', me,
  'outcome', ARGV[6], 'staged_at', now)
redis.call('PEXPIRE', gate, 2592000000)
return {1, h[3] or '', h[4] or '', now}
