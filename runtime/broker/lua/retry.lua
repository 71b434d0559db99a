#!lua flags=allow-oom
-- Records that an attempt has failed and parks the entry until the next one. The attempt stays charged.
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
-- ARGV[6] ms that the key stays taken, if the event was cancelled
-- ARGV[7] ms that records are kept
-- ARGV[8] ms until the next attempt
-- ARGV[9] what went wrong
-- Returns
--   {1} done
--   {2} this token has settled before
--   {3} dropped: the event was cancelled
--  {-2} the token holds nothing any more
--  {-4} the entry is gone: dead-letter the fields at hand
local stream, gate, due, run, feed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, me, id, token, event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ttl, keep, delay, problem = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function before(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  return tonumber(am) < tonumber(bm) or (am == bm and tonumber(as) < tonumber(bs))
end

-- Acknowledge for our group; delete unless another group still needs the entry.
local function drop()
  redis.call('ZREM', due, id)
  redis.pcall('XACK', stream, group, id)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return end
  for _, g in ipairs(groups) do
    local needs = g[2] ~= group and (before(g[8], id) or redis.call('XPENDING', stream, g[2], id, id, 1)[1])
    if needs then return end
  end
  redis.call('XDEL', stream, id)
end

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

-- A stream takes four kilobytes, however short it is: what the feed of an ended run tells goes into the record, and the
-- stream when those who read it now have had it. Of the lines that are left out, the record keeps the last one's id.
local function fold()
  local kept, lost = {}, nil
  for _, line in ipairs(redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1200)) do
    if #kept < 200 and line[2][2] ~= 'token' then
      table.insert(kept, 1, line)
    else
      lost = lost or line[1]
    end
  end
  redis.call('HSET', run, 'feed', cjson.encode(kept))
  if lost then redis.call('HSET', run, 'feed_gap', lost) end
  redis.call('PEXPIRE', feed, 60000)
end

local settled = fence()
if settled ~= 1 then return {settled} end
local status, kind, data = 'delayed', 'retry', {error = problem, due_at = now + delay}
if redis.call('HGET', gate, 'cancel') == '1' then
  status, kind, data = 'cancelled', 'cancelled', {error = problem}
  drop()
  redis.call('HSET', gate, 'state', 'cancelled', 'event', event, 'entry', id, 'ended', now)
  redis.call('HDEL', gate, 'cancel', 'due', 'checkpoint')
  redis.call('PEXPIRE', gate, ttl)
  redis.call('HDEL', run, 'due_at')
  redis.call('HSET', run, 'ended_at', now)
else
  if not park(now + delay) then return {-4} end
  redis.call('HSET', gate, 'state', 'delayed', 'event', event, 'entry', id, 'due', now + delay)
  redis.call('PEXPIRE', gate, delay + 2592000000)
  redis.call('HSET', run, 'due_at', now + delay)
end
remember(status)
redis.call('HSET', run, 'event_id', event, 'entry_id', id, 'status', status, 'last_error', problem)
redis.call('PEXPIRE', run, delay + keep)
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', kind, 'at', now, 'data', cjson.encode(data))
redis.call('PEXPIRE', feed, delay + keep)
if status == 'cancelled' then fold() end
return {status == 'cancelled' and 3 or 1}
