#!lua flags=allow-oom
-- Gives back entries that were read and never begun: no gate, no attempt.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] ms until they are due
-- ARGV[4...] entry ids
-- Returns
--   {n} how many were still this worker's
local stream, due = KEYS[1], KEYS[2]
local group, me, delay = ARGV[1], ARGV[2], tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local given = 0
for i = 4, #ARGV do
  local p = redis.pcall('XPENDING', stream, group, ARGV[i], ARGV[i], 1)
  if not p.err and p[1] and p[1][2] == me
    and redis.call('XCLAIM', stream, group, '~parked', 0, ARGV[i], 'JUSTID')[1] then
    redis.call('ZADD', due, now + delay, ARGV[i])
    given = given + 1
  end
end
return {given}
