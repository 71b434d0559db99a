#!lua
-- Whether a route takes new events now: its rate and its backlog, and those of the events' tenant. All or none is taken.
--
-- Rates are the generic cell rate algorithm: one time for each, at which what was taken so far would have come evenly.
-- No flag: out of memory, the server refuses it whole.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] rate   string the time (ms) of the route's rate
-- KEYS[3] trate  string the time (ms) of the tenant's rate
-- KEYS[4] open   zset   the tenant's events that may not have ended, to the time (ms) they were taken
-- ARGV[1] ms between two events of the route's rate; 0: any
-- ARGV[2] events of the route at once
-- ARGV[3] entries that the stream may hold; 0: any
-- ARGV[4] ms between two events of the tenant's rate; 0: any
-- ARGV[5] events of the tenant at once
-- ARGV[6] events of the tenant that may be open; 0: any
-- ARGV[7] ms that open events are remembered
-- ARGV[8...] event ids
-- Returns
--   {1, 0}  taken
--   {2, ms} over the route's rate; it may be tried again after so long
--   {3, ms} over the tenant's rate
--   {4, n}  the stream holds so many entries
--   {5, n}  so many of the tenant's events are open
local stream, open = KEYS[1], KEYS[4]
local most, tmost, keep = tonumber(ARGV[3]), tonumber(ARGV[6]), tonumber(ARGV[7])
local count = #ARGV - 7
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000

-- The time after these events, and how long they have to wait for their turn.
local function turn(key, interval, burst)
  if interval == 0 then return 0, 0 end
  local after = math.max(tonumber(redis.call('GET', key) or 0), now) + count * interval
  -- More at once than a burst are taken when nothing was taken before: else they never could be.
  return after, after - now - interval * math.max(burst, count)
end

local after, wait = turn(KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2]))
if wait > 0.001 then return {2, math.ceil(wait)} end
local tafter, twait = turn(KEYS[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
if twait > 0.001 then return {3, math.ceil(twait)} end
if most > 0 then
  local length = redis.call('XLEN', stream)
  if length + count > most then return {4, length} end
end
if tmost > 0 then
  local held, fresh = redis.call('ZCARD', open), 0
  for i = 8, #ARGV do
    if not redis.call('ZSCORE', open, ARGV[i]) then fresh = fresh + 1 end
  end
  if held + fresh > tmost then return {5, held} end
  for i = 8, #ARGV do redis.call('ZADD', open, now, ARGV[i]) end
  redis.call('PEXPIRE', open, keep)
end
if after > 0 then redis.call('SET', KEYS[2], string.format('%.3f', after), 'PX', math.ceil(after - now)) end
if tafter > 0 then redis.call('SET', KEYS[3], string.format('%.3f', tafter), 'PX', math.ceil(tafter - now)) end
return {1, 0}
