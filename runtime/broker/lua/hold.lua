#!lua flags=allow-oom
-- Keeps an outcome that cannot be written where it belongs: whole in the gate, its result in the run's record. The entry
-- is parked; whoever takes it next tries to publish what is kept, and the flow does not run again.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] gate   hash   state machine of the run
-- KEYS[3] due    zset   parked entry to the time it is due (ms)
-- KEYS[4] run    hash   record of the run
-- KEYS[5] feed   stream progress of the run
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] entry id
-- ARGV[4] token
-- ARGV[5] event id
-- ARGV[6] ms that records are kept
-- ARGV[7] ms until it is tried again
-- ARGV[8] why it cannot be written
-- ARGV[9] the outcome (JSON); empty: the gate keeps it already
-- ARGV[10] the result (JSON), or empty
-- Returns
--   {1} done
--   {2} this token has settled before
--  {-2} the token holds nothing any more
--  {-4} kept, but the entry is gone: another event of the key will publish it
local stream, gate, due, run, feed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, me, id, token, event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local keep, delay, problem, outcome, result = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Keep the entry where it is until it is due. False: it is gone. Without the group it is delivered anew later.
local function park(at)
  local claimed = redis.pcall('XCLAIM', stream, group, '~parked', 0, id, 'JUSTID')
  if claimed.err or not claimed[1] then
    if not redis.call('XRANGE', stream, id, id)[1] then return false end
    -- It exists and is not pending: the group was made anew, or somebody acknowledged it by hand.
    if not claimed.err then redis.call('XCLAIM', stream, group, '~parked', 0, id, 'FORCE', 'JUSTID') end
  end
  redis.call('ZADD', due, at, id)
  return true
end

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

-- What became of the token, for a repeated call; the last 20 are kept.
local function remember(outcome)
  local tokens = {}
  for word in (redis.call('HGET', gate, 'told') or ''):gmatch('%S+') do tokens[#tokens + 1] = word end
  tokens[#tokens + 1] = token
  while #tokens > 20 do redis.call('HDEL', gate, 'o:' .. table.remove(tokens, 1)) end
  redis.call('HSET', gate, 'o:' .. token, outcome, 'told', table.concat(tokens, ' '))
end

local settled = fence()
if settled ~= 1 then return {settled} end
if outcome ~= '' then redis.call('HSET', gate, 'outcome', outcome, 'staged_at', now) end
redis.call('HSET', gate, 'state', 'staged', 'event', event, 'entry', id, 'worker', '')
redis.call('PEXPIRE', gate, 2592000000)
remember('held')
redis.call('HSET', run, 'event_id', event, 'entry_id', id, 'status', 'delayed', 'last_error', problem, 'due_at',
  now + delay)
if result ~= '' then redis.call('HSET', run, 'result', result) end
redis.call('PEXPIRE', run, math.max(keep, 2592000000))
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'retry', 'at', now, 'data',
  cjson.encode({error = problem, due_at = now + delay}))
redis.call('PEXPIRE', feed, keep)
if not park(now + delay) then return {-4} end
return {1}
