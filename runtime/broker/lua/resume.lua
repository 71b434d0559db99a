#!lua
-- Takes a person's decision for a run that waits, once, and makes its entry due. No flag: out of memory, the server
-- refuses it whole.
--
-- KEYS[1] gate   hash   state machine of the run
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] run    hash   record of the run
-- KEYS[4] feed   stream progress of the run
-- KEYS[5] runs   zset   event id to the time of its last change, for listings
-- ARGV[1] event id
-- ARGV[2] id of the request that is decided
-- ARGV[3] the decision (JSON)
-- ARGV[4] the decision for the feed (JSON)
-- ARGV[5] 1: it was held against what the request allows; only a repeated one need not be
-- Returns
--   {0} unknown
--   {1} taken
--   {2} the same decision was taken before
--   {3} another decision was taken before
--   {4} it waits for another request, or waited for none
--   {5} the time is up, or the run has ended
local gate, due, run, feed, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local event, request, decision, checked = ARGV[1], ARGV[2], ARGV[3], ARGV[5] == '1'
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local h = redis.call('HMGET', gate, 'state', 'event', 'entry', 'pause', 'decision', 'due')
if h[2] ~= event and redis.call('EXISTS', run) == 0 then return {0} end
if h[2] ~= event then return {5} end
if h[4] ~= request then return {4} end
if h[5] then return {h[5] == decision and 2 or 3} end
if h[1] ~= 'waiting' or tonumber(h[6] or 0) <= now then return {5} end
if not checked then return {4} end
redis.call('HSET', gate, 'state', 'queued', 'decision', decision)
redis.call('HDEL', gate, 'due')
-- Its member may have been lost; what is not parked is skipped when it is due.
redis.call('ZADD', due, now, h[3])
redis.call('HDEL', run, 'due_at', 'pause')
redis.call('HSET', run, 'status', 'queued')
redis.call('ZADD', runs, now, event)
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'resumed', 'at', now, 'data', ARGV[4])
return {1}
