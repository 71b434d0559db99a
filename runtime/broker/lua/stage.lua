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
-- Returns
--   {1} done
--   {2} this token has settled before
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
redis.call('HSET', gate, 'state', 'staged', 'event', event, 'entry', id, 'token', token, 'worker', me,
  'outcome', ARGV[6])
redis.call('PEXPIRE', gate, 2592000000)
return {1}
