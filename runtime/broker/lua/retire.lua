#!lua flags=allow-oom
-- Gives up a consumer group that no worker reads with: the group, its parked entries' due times, its workers' leases.
--
-- KEYS[1] stream  stream the stream that it reads
-- KEYS[2] due     zset   parked entry to the time it is due (ms)
-- KEYS[3] leases  zset   worker to the end of its lease (ms)
-- KEYS[4] obits   hash   dead worker to whom its death is blamed on
-- KEYS[5] blocked hash   why the route is blocked
-- KEYS[6] runs    zset   event id to the time of its last change, for listings
-- ARGV[1] group
-- ARGV[2] ms that a consumer which never had a lease here must have done nothing; 0: it may be active
-- Returns
--   {1} done
--   {0} a worker with a lease reads with it: nothing was done
--   {2} a consumer of somebody else's reads with it: nothing was done
--  {-3} there is no such stream or group; its keys are gone all the same
local stream, due, leases, obits, blocked, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

if redis.call('ZCOUNT', leases, '(' .. now, '+inf') > 0 then return {0} end
local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, ARGV[1])
for _, c in ipairs(consumers) do
  local name, quiet = c[2], c[6]
  if name ~= '~parked' and quiet < tonumber(ARGV[2]) and not redis.call('ZSCORE', leases, name) then return {2} end
end
redis.call('DEL', due, leases, obits, blocked, runs)
local gone = redis.pcall('XGROUP', 'DESTROY', stream, ARGV[1])
if type(gone) == 'table' and gone.err or gone == 0 then return {-3} end
return {1}
