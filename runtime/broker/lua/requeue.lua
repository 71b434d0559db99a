#!lua
-- Puts a dead letter back on its route's stream, with all attempts before it. No flag: out of memory, the server
-- refuses it whole.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] gate   hash   state machine of the run
-- KEYS[3] run    hash   record of the run
-- KEYS[4] feed   stream progress of the run
-- KEYS[5] runs   zset   event id to the time of its last change, for listings
-- KEYS[6] pub    string the entry id under which this event was published here
-- KEYS[7] mark   string the entry id under which a dead letter was put back that lies in another slot
-- KEYS[8...] the dead letters (stream), if they lie in this slot
-- ARGV[1] id of the dead letter
-- ARGV[2] event id
-- ARGV[3] ms that records are kept
-- ARGV[4...] names and values of the entry
-- Returns
--   {1, id} done: the id of the new entry
--   {2} there is no such dead letter (any more)
--  {-5, 1} the target is not a stream; nothing was written
local stream, gate, run, feed, runs, pub, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local dlq = #KEYS > 7 and KEYS[#KEYS]
local dead, event, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local kind = redis.call('TYPE', stream).ok
if kind ~= 'none' and kind ~= 'stream' then return {-5, 1} end
if dlq then
  if not redis.call('XRANGE', dlq, dead, dead)[1] then return {2} end
else
  -- The caller has seen it, and deletes it after this; it may have been here before.
  local done = redis.call('GET', mark)
  if done then return {1, done} end
end

local fields = {}
for i = 4, #ARGV do fields[#fields + 1] = ARGV[i] end
local id = redis.call('XADD', stream, '*', unpack(fields))
if dlq then
  redis.call('XDEL', dlq, dead)
else
  redis.call('SET', mark, id, 'PX', 86400000)
end
redis.call('SET', pub, id, 'XX', 'KEEPTTL')
local state = redis.call('HGET', gate, 'state')
if not state or state == 'dead' then
  redis.call('HINCRBY', gate, 'gen', 1)
  redis.call('HDEL', gate, 'dl', 'due', 'cancel', 'ended', 'outcome', 'suspect', 'pause', 'decision',
    'checkpoint')
  redis.call('HSET', gate, 'state', 'queued', 'event', event, 'entry', id, 'attempts', 0, 'over', '0', 'first', now)
  redis.call('PEXPIRE', gate, 2592000000)
end
local status = redis.call('HGET', run, 'status')
if not status or status == 'dead_lettered' then
  redis.call('HDEL', run, 'ended_at', 'due_at', 'started_at', 'duplicate_of', 'last_error', 'result', 'published',
    'dead_letter', 'dead_letter_id', 'feed', 'feed_gap')
  redis.call('HSET', run, 'event_id', event, 'entry_id', id, 'status', 'queued', 'attempts', 0, 'queued_at', now)
  redis.call('PEXPIRE', run, math.max(keep, 2592000000))
  redis.call('ZADD', runs, now, event)
  redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'queued', 'at', now, 'data', '{"requeued":true}')
  redis.call('PEXPIRE', feed, math.max(keep, 2592000000))
end
return {1, id}
