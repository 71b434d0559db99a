#!lua flags=allow-oom
-- The end of a drain, or of one route: parks a page of what is still the worker's; with the last page its consumer and
-- lease go too.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms); negative: the time it was declared dead
-- KEYS[4] obits  hash   dead worker to whom its death is blamed on
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] entries of a page
-- ARGV[4] 1: the worker ends; 0: it only reads this stream no more, and may come back to it under its name
-- Returns
--   {n} entries parked; call again unless it is 0
local stream, due, leases, obits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, me, page, ends = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local held = redis.pcall('XPENDING', stream, group, '-', '+', page, me)
if not held.err then
  for _, entry in ipairs(held) do
    if redis.call('XCLAIM', stream, group, '~parked', 0, entry[1], 'JUSTID')[1] then
      redis.call('ZADD', due, now, entry[1])
    end
  end
  if #held == page then return {page} end
  -- In the same script as the last look: what were read in between would be thrown away with the consumer.
  redis.call('XGROUP', 'DELCONSUMER', stream, group, me)
end
if ends then
  redis.call('HSET', obits, me, '')
  redis.call('ZADD', leases, -now, me)
elseif tonumber(redis.call('ZSCORE', leases, me) or 0) >= 0 then
  -- Without a lease none of its late commands reads anything.
  redis.call('ZREM', leases, me)
end
return {0}
