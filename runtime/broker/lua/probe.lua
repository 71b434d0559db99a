#!lua flags=allow-oom
-- Lets the next fetch of a blocked route have its probe at once.
--
-- KEYS[1] blocked hash why the route is blocked; absent: it is not
-- Returns
--   {1} done
--   {0} the route is not blocked
local blocked = KEYS[1]
if redis.call('EXISTS', blocked) == 0 then return {0} end
redis.call('HSET', blocked, 'next_probe', 0)
return {1}
