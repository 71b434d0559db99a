#!lua flags=allow-oom
-- Cancels an event that has not ended. A run in progress is asked: it ends as cancelled when its attempt fails.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] gate   hash   state machine of the run
-- KEYS[3] due    zset   parked entry to the time it is due (ms)
-- KEYS[4] run    hash   record of the run
-- KEYS[5] feed   stream progress of the run
-- ARGV[1] group
-- ARGV[2] event id
-- ARGV[3] ms that the key stays taken
-- ARGV[4] ms that records are kept
-- Returns
--   {0} unknown
--   {1} cancelled
--   {2} asked
--   {3} it has ended already
local stream, gate, due, run, feed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, event, ttl, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function before(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  return tonumber(am) < tonumber(bm) or (am == bm and tonumber(as) < tonumber(bs))
end

local h = redis.call('HMGET', gate, 'state', 'event', 'entry')
local status = redis.call('HGET', run, 'status')
local id = h[3]
if status == 'completed' or status == 'dead_lettered' or status == 'cancelled' then return {3} end

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

local mine = h[1] and h[2] == event
if not mine and not status then return {0} end
if mine and (h[1] == 'running' or h[1] == 'staged') then
  redis.call('HSET', gate, 'cancel', '1')
  return {2}
end
if mine and h[1] ~= 'delayed' and h[1] ~= 'queued' and h[1] ~= 'waiting' then return {3} end
if mine then
  -- An unread entry stays: deleting it would leave Redis without the group's lag. Begin drops it.
  local p = redis.pcall('XPENDING', stream, group, id, id, 1)
  if not p.err and p[1] then drop() end
  redis.call('HSET', gate, 'state', 'cancelled', 'ended', now)
  redis.call('HDEL', gate, 'checkpoint')
  redis.call('PEXPIRE', gate, ttl)
end
redis.call('HDEL', run, 'due_at', 'pause')
redis.call('HSET', run, 'event_id', event, 'status', 'cancelled', 'ended_at', now)
redis.call('PEXPIRE', run, keep)
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'cancelled', 'at', now, 'data', '{}')
fold()
return {1}
