#!lua flags=allow-oom
-- Blocks a route: its entries wait, and one at a time tries whether it still must be.
--
-- KEYS[1] blocked hash why the route is blocked; absent: it is not
-- ARGV[1] error code
-- ARGV[2] reason
-- ARGV[3] component id, or empty
-- ARGV[4] ms until the first probe
-- Returns
--   {1} it was not blocked before
--   {0} it was: the reason is the new one, the time of the next probe is as it was
local blocked = KEYS[1]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local new = redis.call('EXISTS', blocked) == 0
redis.call('HSET', blocked, 'code', ARGV[1], 'reason', ARGV[2], 'component_id', ARGV[3])
if new then redis.call('HSET', blocked, 'since', now, 'next_probe', now + ARGV[4]) end
return {new and 1 or 0}
