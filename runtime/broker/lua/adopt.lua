#!lua flags=allow-oom
-- Takes parked entries by id, whatever their due time.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms)
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3...] entry ids
-- Returns
--   {1, entries} those that were parked and exist
--  {-1} the worker has no valid lease
--  {-3} there is no such stream or group
local stream, due, leases = KEYS[1], KEYS[2], KEYS[3]
local group, me = ARGV[1], ARGV[2]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local lease = redis.call('ZSCORE', leases, me)
if not lease or tonumber(lease) <= now then return {-1} end

local entries = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local p = redis.pcall('XPENDING', stream, group, id, id, 1)
  if p.err then
    if tostring(p.err):find('NOGROUP', 1, true) then return {-3} end
    return p
  end
  if p[1] and p[1][2] == '~parked' then
    redis.call('ZREM', due, id)
    if redis.call('XCLAIM', stream, group, me, 0, id, 'JUSTID')[1] then
      entries[#entries + 1] = redis.call('XRANGE', stream, id, id)[1]
    end
  end
end
return {1, entries}
