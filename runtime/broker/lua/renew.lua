#!lua flags=allow-oom
-- Makes the leases of a worker end later, on many routes. A worker that was declared dead is never revived.
--
-- KEYS[1...] leases of each route, a zset: worker to the end of its lease (ms); negative: the time it was declared dead
-- ARGV[1] ms from now until the leases end
-- ARGV[2] worker
-- Returns one number for each route:
--   1 renewed
--   2 registered: there was no lease (a start, or Redis was emptied)
--  -1 declared dead
--   0 refused: the key is something else. The others are renewed all the same
local ttl, me = ARGV[1], ARGV[2]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local answers = {}
for i = 1, #KEYS do
  local leases = KEYS[i]
  local lease = redis.pcall('ZSCORE', leases, me)
  if type(lease) == 'table' and lease.err then
    answers[i] = 0
  elseif lease and tonumber(lease) < 0 then
    answers[i] = -1
  else
    redis.call('ZADD', leases, now + ttl, me)
    answers[i] = lease and 1 or 2
  end
end
return answers
