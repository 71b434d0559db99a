#!lua flags=allow-oom
-- Deletes the old entries of a stream that no group reads.
--
-- KEYS[1] stream stream results, most often
-- ARGV[1] ms that an entry is kept
-- Returns
--   {n} entries deleted
local stream, life = KEYS[1], tonumber(ARGV[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

if redis.call('TYPE', stream).ok ~= 'stream' or #redis.call('XINFO', 'GROUPS', stream) > 0 then return {0} end
return {redis.call('XTRIM', stream, 'MINID', string.format('%.0f', math.max(0, now - life)))}
