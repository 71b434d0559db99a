#!lua flags=allow-oom
-- Makes the leases of workers end later. A worker that was declared dead is never revived.
--
-- KEYS[1] leases zset worker to the end of its lease (ms); negative: the time it was declared dead
-- ARGV[1] ms from now until the leases end
-- ARGV[2...] workers
-- Returns one number for each worker:
--   1 renewed
--   2 registered: there was no lease (a start, or Redis was emptied)
--  -1 declared dead
local leases = KEYS[1]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local answers = {}
for i = 2, #ARGV do
  local lease = redis.call('ZSCORE', leases, ARGV[i])
  if lease and tonumber(lease) < 0 then
    answers[#answers + 1] = -1
  else
    redis.call('ZADD', leases, now + ARGV[1], ARGV[i])
    answers[#answers + 1] = lease and 1 or 2
  end
end
return answers
