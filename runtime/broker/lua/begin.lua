#!lua
-- Decides whether a worker may run an entry, and if so makes it the holder of the gate. No flag: out of memory, the
-- server refuses it whole.
--
-- KEYS[1] stream  stream the route's stream
-- KEYS[2] gate    hash   state machine of the run that holds this idempotency key
-- KEYS[3] due     zset   parked entry to the time it is due (ms)
-- KEYS[4] leases  zset   worker to the end of its lease (ms)
-- KEYS[5] obits   hash   dead worker to the tokens its death is blamed on, or * for all
-- KEYS[6] run     hash   record of this event's run
-- KEYS[7] blocked hash   why the route is blocked; absent: it is not
-- KEYS[8] feed    stream progress of this event's run
-- KEYS[9] runs    zset   event id to the time of its last change, for listings
-- KEYS[10] watch  string there while somebody follows this event's run
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] entry id
-- ARGV[4] token of this attempt
-- ARGV[5] event id
-- ARGV[6] attempts at most
-- ARGV[7] a token of this worker's own that it does not run any more, or empty
-- ARGV[8] ms until a waiting duplicate asks again, the first time; each time twice as long
-- ARGV[9] ms that it waits at most
-- ARGV[10] ms that the key of an ended event stays taken
-- ARGV[11] ms that records are kept
-- ARGV[12] 1: run although the route is blocked
-- ARGV[13] 1: nothing else runs in this process, so that an entry may that is suspected of killing its worker
-- ARGV[14...] names and values for the run record
-- Returns
--   {1, attempts, pause, decision, n} run; where it waited for a person, from its checkpoint: the request's id, and the
--     decision (JSON), empty if the time was up; n 1: somebody follows it
--   {2, attempts, pause, decision, n} the attempts are used up by deaths: dead-letter it, do not run
--   {3, attempts, event, entry} an outcome is staged: publish that one, under these ids
--   {4, status, event} dropped: the event has ended, or is a duplicate of that event, which has
--   {5, worker, token, n} parked, for the nth time: another run holds the key, or it is not due yet
--   {6} dropped: cancelled
--   {7} parked: the route is blocked
--   {8} parked: its worker died with it; it may run alone in a process only
--   {0} the entry is not pending for this worker
--  {-1} the worker has no valid lease
--  {-3} there is no such stream or group
local stream, gate, due, leases, obits = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local run, blocked, feed, runs, watch = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local group, me, id, token, event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local max, takeover, wait, longest = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local ttl, keep, probe, alone = tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12] == '1', ARGV[13] == '1'
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local sent = tonumber(id:match('^%d+'))

local function alive(worker)
  local lease = worker and redis.call('ZSCORE', leases, worker)
  return lease and tonumber(lease) > now
end

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

local function exists(entry)
  return entry and (redis.call('XPENDING', stream, group, entry, entry, 1)[1]
    or redis.call('XRANGE', stream, entry, entry)[1])
end

-- The entry is pending for this worker: only a deleted one cannot be claimed, and that acknowledges it.
local function park(at)
  if redis.call('XCLAIM', stream, group, '~parked', 0, id, 'JUSTID')[1] then redis.call('ZADD', due, at, id) end
end

-- What the record says already; set below.
local past

local function record(...)
  local fields = {}
  for i = 14, #ARGV do fields[#fields + 1] = ARGV[i] end
  for _, word in ipairs({'event_id', event, 'entry_id', id, 'queued_at', sent, ...}) do fields[#fields + 1] = word end
  -- What is not among them is the event's id: what a publish has written stays otherwise.
  if past[1] then redis.call('HDEL', run, 'root_id', 'idempotency_key') end
  redis.call('HSET', run, unpack(fields))
  redis.call('PEXPIRE', run, keep)
end

local function tell(kind, data)
  redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', kind, 'at', now, 'data', cjson.encode(data))
  redis.call('PEXPIRE', feed, keep)
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

-- The order of these three is proven: lease, token, pending list.
if not alive(me) then return {-1} end
local h = redis.call('HMGET', gate, 'state', 'token', 'entry', 'worker', 'attempts', 'event', 'due', 'cancel', 'ended',
  'over', 'suspect', 'pause', 'decision', 'gen')
local state, holder, first, attempts = h[1], h[4], h[6], tonumber(h[5] or 0)
local same, mine, over = h[3] == id, h[6] == event, h[10] == '1'
if (state == 'running' or state == 'staged') and h[2] == token then
  if state == 'staged' then return {3, attempts, first, h[3]} end
  return {over and 2 or 1, attempts, h[12] or '', h[13] or '', redis.call('EXISTS', watch)}
end
local p = redis.pcall('XPENDING', stream, group, id, id, 1)
if p.err then
  if tostring(p.err):find('NOGROUP', 1, true) then return {-3} end
  return p
end
if not p[1] or p[1][2] ~= me then return {0} end

past = redis.call('HMGET', run, 'status', 'ended_at', 'duplicate_of')
local ended_at = tonumber(past[2] or 0)
if ((past[1] == 'completed' or past[1] == 'cancelled') and ended_at + ttl > now)
  or (past[1] == 'dead_lettered' and sent <= ended_at) then
  drop()
  redis.call('HDEL', gate, 'w:' .. id)
  return {4, past[1], past[3] or event}
end

-- How often an entry has waited is the gate's to know: each time another worker may take it.
local function later(at)
  local times = redis.call('HINCRBY', gate, 'w:' .. id, 1)
  at = at or now + math.floor(math.min(longest, wait * 2 ^ math.min(times - 1, 20)))
  park(at)
  if not mine then record('status', 'delayed', 'due_at', at) end
  return {5, holder or '', h[2] or '', times}
end

local fresh = false
if state == 'running' or state == 'staged' then
  if alive(holder) and not (holder == me and h[2] == takeover) then return later() end
  if not same and exists(h[3]) then return later() end
  if not mine then
    if state == 'staged' then
      redis.call('HSET', gate, 'token', token, 'worker', me)
      return {3, attempts, first, h[3]}
    end
    fresh = true
  end
elseif state == 'delayed' or state == 'queued' or state == 'waiting' then
  -- What waits for a person waits on in an entry that was sent again in place of a deleted one.
  if mine and (same or (state == 'waiting' and not exists(h[3]))) then
    redis.call('HSET', gate, 'entry', id)
    if h[7] and tonumber(h[7]) > now then return later(tonumber(h[7])) end
  elseif not same and exists(h[3]) then
    return later(state == 'waiting' and now + 60000)
  else
    fresh = not mine
  end
elseif state == 'completed' or (mine and (state == 'cancelled' or (state == 'dead' and sent <= tonumber(h[9])))) then
  local status = state == 'dead' and 'dead_lettered' or state
  drop()
  redis.call('HDEL', gate, 'w:' .. id)
  if not mine then
    record('status', status, 'duplicate_of', first, 'ended_at', now)
    redis.call('ZADD', runs, now, event)
    tell(status, {duplicate_of = first})
    fold()
  end
  return {4, status, first}
else
  fresh = true
end

if not fresh and mine and h[8] == '1' and state ~= 'staged' then
  drop()
  redis.call('HSET', gate, 'state', 'cancelled', 'ended', now)
  redis.call('HDEL', gate, 'checkpoint')
  redis.call('PEXPIRE', gate, ttl)
  record('status', 'cancelled', 'ended_at', now)
  tell('cancelled', {attempt = attempts})
  fold()
  return {6}
end
if state == 'staged' then
  redis.call('HSET', gate, 'token', token, 'worker', me, 'entry', id)
  redis.call('ZREM', due, id)
  return {3, attempts, first, id}
end

local suspect = h[11] == '1'
if fresh then
  attempts, over, suspect = 0, false, false
  h[12], h[13] = false, false
elseif state == 'running' and not over then
  -- Its holder died. The first death is free, since it may be another's doing: the event is suspected, and runs alone
  -- until it ends, also when an attempt fails in between. A death while alone is its own and stays charged, as a failure
  -- does. An obituary that blames nobody (the process was asked to end) clears it; one that blames others leaves it
  -- uncharged, but alone from now on: else an entry beside others that hang could run without an end to it.
  local blame = redis.call('HGET', obits, holder)
  if blame and not blame:find('[^ ]') then
    attempts = attempts - 1
  elseif blame and blame ~= '*' and not blame:find(' ' .. h[2] .. ' ', 1, true) then
    attempts, suspect = attempts - 1, true
  elseif not suspect and holder ~= me then
    attempts, suspect = attempts - 1, true
  end
end
over = attempts >= max
if not over and not probe and redis.call('EXISTS', blocked) == 1 then
  park(now)
  return {7}
end
if suspect and not alone and not over then
  redis.call('HSET', gate, 'state', 'queued', 'event', event, 'entry', id, 'attempts', attempts, 'worker', '',
    'suspect', '1')
  record('status', 'queued', 'attempts', attempts)
  park(now + wait)
  return {8}
end
if not over then attempts = attempts + 1 end
local began = {'state', 'running', 'event', event, 'entry', id, 'token', token, 'worker', me, 'attempts', attempts,
  'started', now, 'over', over and '1' or '0', 'suspect', suspect and '1' or '0'}
if fresh then
  if state then
    redis.call('HDEL', gate, 'cancel', 'ended', 'dl', 'outcome', 'staged_at', 'pause', 'decision', 'checkpoint')
  end
  for _, word in ipairs({'first', now, 'gen', tonumber(h[14] or 0) + 1}) do began[#began + 1] = word end
end
-- Of an event that nobody has heard of, as most are, there is nothing to take away.
if state then redis.call('HDEL', gate, 'due', 'w:' .. id) end
if past[1] then
  redis.call('HDEL', run, 'due_at', 'pause')
  if fresh then
    redis.call('HDEL', run, 'ended_at', 'duplicate_of', 'last_error', 'result', 'published', 'dead_letter',
      'dead_letter_id', 'feed', 'feed_gap')
  end
end
redis.call('HSET', gate, unpack(began))
-- Never the ttl of an ended key: in a long delay it would expire and a duplicate would run. 30 days are for gates whose
-- entry somebody deleted.
redis.call('PEXPIRE', gate, 2592000000)
redis.call('ZREM', due, id)
record('status', 'running', 'attempts', attempts, 'started_at', now, 'worker', me)
redis.call('ZADD', runs, now, event)
tell('started', {attempt = attempts, worker = me})
return {over and 2 or 1, attempts, h[12] or '', h[13] or '', redis.call('EXISTS', watch)}
