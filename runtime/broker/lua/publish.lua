#!lua
-- Adds an event to a stream, once per event id. No flag: out of memory, the server refuses it whole.
--
-- KEYS[1] stream stream the target
-- KEYS[2] pub    string the entry id under which this event was published here
-- KEYS[3] run    hash   record of the event's run; this key and the next two only where the stream is a route's
-- KEYS[4] feed   stream progress of the run
-- KEYS[5] runs   zset   event id to the time of its last change, for listings
-- ARGV[1] ms that a second publish of the event is recognised
-- ARGV[2] event id
-- ARGV[3] ms that records are kept
-- ARGV[4] entries that the stream keeps where no group reads it; empty: all
-- ARGV[5] ms that the stream lives after this entry where no group reads it; empty: for ever
-- ARGV[6] number of names and values that follow for the run record, then those, then the entry's names and values
-- Returns
--   {1, id} added
--   {2, id} published before, and that entry is still to be settled or its event has ended
--  {-5, 1} the target is not a stream
local stream, pub, run, feed, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ttl, event, keep, count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local kind = redis.call('TYPE', stream).ok
if kind ~= 'none' and kind ~= 'stream' then return {-5, 1} end

local record = run and redis.call('HMGET', run, 'status', 'ended_at') or {}
local ended = record[1] == 'completed' or record[1] == 'cancelled' or record[1] == 'dead_lettered'
local old = redis.call('GET', pub)
if old then
  -- An outcome that was published in part is repeated until it is recorded, however long that takes.
  if not run then redis.call('PEXPIRE', pub, ttl) end
  if not run or ended then return {2, old} end
  -- The id alone proves nothing: a deleted stream may give the same id again within the same millisecond.
  local entry = redis.call('XRANGE', stream, old, old)[1]
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'event_id' and entry[2][i + 1] == event then return {2, old} end
  end
end

-- Where no group reads a target, it keeps so many entries and is gone so long after the last one.
local function bound(target, limit, life)
  if limit == '' and life == '' then return end
  if #redis.call('XINFO', 'GROUPS', target) > 0 then
    if life ~= '' then redis.call('PERSIST', target) end
    return
  end
  if limit ~= '' then redis.call('XTRIM', target, 'MAXLEN', '~', limit) end
  if life ~= '' then redis.call('PEXPIRE', target, life) end
end

local fields = {}
for i = 7 + count, #ARGV do fields[#fields + 1] = ARGV[i] end
local id = redis.call('XADD', stream, '*', unpack(fields))
redis.call('SET', pub, id, 'PX', ttl)
bound(stream, ARGV[4], ARGV[5])
if not run then return {1, id} end
-- The record of a completed or cancelled event stays while its key is taken: the gate will drop this entry.
if ended and record[1] ~= 'dead_lettered' and record[2] and record[2] + ttl > now then return {1, id} end
if not ended and record[1] then return {1, id} end
local meta = {}
for i = 7, 6 + count do meta[#meta + 1] = ARGV[i] end
redis.call('HDEL', run, 'ended_at', 'due_at', 'started_at', 'duplicate_of', 'last_error', 'result', 'published',
  'dead_letter', 'dead_letter_id', 'feed', 'feed_gap', 'root_id', 'idempotency_key', 'digest')
if count > 0 then redis.call('HSET', run, unpack(meta)) end
redis.call('HSET', run, 'event_id', event, 'entry_id', id, 'status', 'queued', 'attempts', 0, 'queued_at', now)
redis.call('PEXPIRE', run, math.max(keep, 2592000000))
redis.call('ZADD', runs, now, event)
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'queued', 'at', now, 'data', '{}')
redis.call('PEXPIRE', feed, math.max(keep, 2592000000))
return {1, id}
